// A model behind HTTP: OpenAI's interface, and verl's. docs/serving.md describes both.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/http/server.h"
#include "inference/protocol/ask.h"
#include "inference/served_model.h"

namespace tdock::inference {

struct ModelServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0 picks a free one
  http::ServerLimits limits = {};
  AskLimits asks = {};
  // Of which a client names one: "Authorization: Bearer KEY". Empty: everybody may ask.
  std::vector<std::string> api_keys = {};
  int64_t max_open_answers = 1024;  // that run or wait; beyond, requests are refused with the status 429
  absl::Duration answer_timeout = absl::InfiniteDuration();  // after it, answers end as they are
  // For the prompts of a request to become tokens; beyond, it is refused with the status 400.
  absl::Duration prepare_timeout = absl::Seconds(30);
  // Gets a line of JSON for each request, without its end. Called on one thread. Empty: no log.
  std::function<void(absl::string_view line)> access_log = {};
  // Gets a sentence when connections cannot be accepted, or can again. On the same thread. Empty: nobody is told.
  std::function<void(const std::string& what)> on_trouble = {};
};

// Thread-safe.
class ModelServer {
 public:
  // The model must outlive it; nobody else may step its engines meanwhile. The errors of http::Server::Start().
  static absl::StatusOr<std::unique_ptr<ModelServer>> Start(ServedModel model, ModelServerOptions options);
  // Cuts the connections, and ends the answers in progress.
  virtual ~ModelServer() = default;

  virtual int port() const = 0;
  // As http::Server::Drain().
  virtual bool Drain(absl::Duration limit) = 0;
};

}  // namespace tdock::inference
