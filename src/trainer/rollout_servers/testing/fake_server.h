// For tests: a server that answers as `tdock serve`, vLLM or SGLang does, from a small model, and fails as it is told
// to.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/http/server.h"
#include "engine/engine.h"
#include "model/decoder/decoder.h"
#include "nlohmann/json.hpp"
#include "trainer/rollout_servers/wire/wire.h"

namespace tdock::trainer {

// Tensors on their way from the rank 0 of a group to a server. Thread-safe.
class FakeChannel {
 public:
  void Push(at::Tensor tensor) TDOCK_EXCLUDES(mu_);
  // Waits for one.
  at::Tensor Pop() TDOCK_EXCLUDES(mu_);

 private:
  Mutex mu_;
  CondVar pushed_;
  std::deque<at::Tensor> tensors_ TDOCK_GUARDED_BY(mu_);
};

struct FakeServerOptions {
  // One of another kind is told of folders by /update_weights, and has no instance, versions or identity.
  ServerKind kind = ServerKind::kTdock;
  std::string instance = "0123456789abcdef";
  int64_t max_model_len = 48;
  std::string dtype = "float32";              // that a tdock says it computes in
  std::string kernels = {};                   // that a tdock says it computes with
  int port = 0;                               // 0: a free one
  bool has_tokens = true;                     // a vLLM with --enable-scale-out
  bool has_weight_calls = true;               // a vLLM with VLLM_SERVER_DEV_MODE=1
  std::shared_ptr<FakeChannel> channel = {};  // of the group that a vLLM or an SGLang joins
};

// Thread-safe.
class FakeServer {
 public:
  // Sees a request first, and may answer it.
  using Intercept = std::function<std::optional<http::Response>(const http::Request& request)>;

  // Serves a copy of the decoder as version 0.
  explicit FakeServer(const model::Decoder& decoder, FakeServerOptions options = {});
  // Cuts all connections.
  ~FakeServer();

  int port() const { return server_->port(); }
  std::string url() const;

  void Set(Intercept intercept) TDOCK_EXCLUDES(mu_);
  // Changes whole replies to completions.
  void Change(std::function<void(nlohmann::json& reply)> change) TDOCK_EXCLUDES(mu_);
  // From now on completions wait; then those that wait are answered.
  void Hold() TDOCK_EXCLUDES(mu_);
  void Release() TDOCK_EXCLUDES(mu_);

  // Completions that have been asked for; those whose client has gone; weights that have been taken.
  int64_t asked() const TDOCK_EXCLUDES(mu_);
  int64_t gone() const TDOCK_EXCLUDES(mu_);
  int64_t updates() const TDOCK_EXCLUDES(mu_);
  // Paths of the requests of a vLLM or an SGLang that give it weights, in their order.
  std::vector<std::string> weight_calls() const TDOCK_EXCLUDES(mu_);
  bool halted() const TDOCK_EXCLUDES(mu_);
  // Calls the weights so, as another trainer might.
  void Relabel(const std::string& label) TDOCK_EXCLUDES(mu_);
  // The last body of its kind.
  nlohmann::json last_ask() const TDOCK_EXCLUDES(mu_);
  nlohmann::json last_update() const TDOCK_EXCLUDES(mu_);

 private:
  using Exchange = std::shared_ptr<http::Exchange>;
  struct Upload {
    nlohmann::json begun;
    std::string bytes;
  };

  void Handle(const Exchange& exchange) TDOCK_EXCLUDES(mu_);
  http::Response Models() TDOCK_REQUIRES(mu_);
  http::Response Complete(const http::Request& request) TDOCK_REQUIRES(mu_);
  http::Response Update(const http::Request& request) TDOCK_REQUIRES(mu_);
  http::Response Begin(const nlohmann::json& begun) TDOCK_REQUIRES(mu_);
  http::Response End(const std::string& checksum) TDOCK_REQUIRES(mu_);
  http::Response ServeFolder(const std::string& folder) TDOCK_REQUIRES(mu_);
  void Serve(std::shared_ptr<const model::Decoder> decoder) TDOCK_REQUIRES(mu_);
  // Of a vLLM or an SGLang; nothing: there is no such path.
  std::optional<http::Response> Foreign(const http::Request& request) TDOCK_REQUIRES(mu_);
  std::optional<http::Response> VllmCall(const std::string& path, const nlohmann::json& body) TDOCK_REQUIRES(mu_);
  std::optional<http::Response> SglangCall(const std::string& path, const nlohmann::json& body) TDOCK_REQUIRES(mu_);
  http::Response Receive(const nlohmann::json& names, const nlohmann::json& dtypes, const nlohmann::json& shapes)
      TDOCK_REQUIRES(mu_);
  nlohmann::json DigestsOfWeights(const std::string& prefix, size_t digits) const TDOCK_REQUIRES(mu_);
  // Those that wait, unless they still have to.
  std::vector<Exchange> TakeHeld() TDOCK_REQUIRES(mu_);
  void AnswerAll(const std::vector<Exchange>& held) TDOCK_EXCLUDES(mu_);

  const FakeServerOptions options_;
  const model::ModelConfig config_;
  mutable Mutex mu_;
  std::shared_ptr<const model::Decoder> decoder_ TDOCK_GUARDED_BY(mu_);
  std::unique_ptr<engine::Engine> engine_ TDOCK_GUARDED_BY(mu_);
  int64_t version_ TDOCK_GUARDED_BY(mu_) = 0;
  std::map<int64_t, std::string> labels_ TDOCK_GUARDED_BY(mu_) = {{0, "default"}};  // of a vLLM or an SGLang
  std::string model_ TDOCK_GUARDED_BY(mu_) = "tiny";
  bool halted_ TDOCK_GUARDED_BY(mu_) = false, has_group_ TDOCK_GUARDED_BY(mu_) = false;
  std::vector<std::string> weight_calls_ TDOCK_GUARDED_BY(mu_);
  std::optional<Upload> upload_ TDOCK_GUARDED_BY(mu_);
  Intercept intercept_ TDOCK_GUARDED_BY(mu_);
  std::function<void(nlohmann::json&)> change_ TDOCK_GUARDED_BY(mu_);
  bool holds_ TDOCK_GUARDED_BY(mu_) = false;
  std::vector<Exchange> held_ TDOCK_GUARDED_BY(mu_);
  int64_t asked_ TDOCK_GUARDED_BY(mu_) = 0, updates_ TDOCK_GUARDED_BY(mu_) = 0;
  std::shared_ptr<std::atomic<int64_t>> gone_ = std::make_shared<std::atomic<int64_t>>(0);
  nlohmann::json last_ask_ TDOCK_GUARDED_BY(mu_), last_update_ TDOCK_GUARDED_BY(mu_);
  std::unique_ptr<http::Server> server_;  // ends first
};

}  // namespace tdock::trainer
