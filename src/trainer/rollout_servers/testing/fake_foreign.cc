// The calls of a vLLM and an SGLang that give them weights.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trainer/rollout_servers/testing/fake_server.h"
#include "trainer/rollout_servers/weight_check.h"

namespace tdock::trainer {
namespace {

using Json = nlohmann::json;

http::Response Said(const Json& json, int status = 200) { return {.status = status, .body = json.dump()}; }

}  // namespace

void FakeChannel::Push(at::Tensor tensor) {
  {
    MutexLock lock(mu_);
    tensors_.push_back(std::move(tensor));
  }
  pushed_.NotifyAll();
}

at::Tensor FakeChannel::Pop() {
  MutexLock lock(mu_);
  while (tensors_.empty()) pushed_.Wait(mu_);
  at::Tensor tensor = std::move(tensors_.front());
  tensors_.pop_front();
  return tensor;
}

std::vector<std::string> FakeServer::weight_calls() const {
  MutexLock lock(mu_);
  return weight_calls_;
}

bool FakeServer::halted() const {
  MutexLock lock(mu_);
  return halted_;
}

void FakeServer::Relabel(const std::string& label) {
  MutexLock lock(mu_);
  labels_[version_] = label;
}

std::optional<http::Response> FakeServer::Foreign(const http::Request& request) {
  const Json body = request.body.empty() ? Json::object() : Json::parse(request.body);
  const bool is_vllm = options_.kind == ServerKind::kVllm;
  if (is_vllm && request.path == "/version") return Said({{"version", "0.32.0"}});
  if (is_vllm && request.path == "/inference/v1/generate") {
    return options_.has_tokens ? Said({{"error", "token_ids is missing"}}, 400) : Said({{"error", "disabled"}}, 403);
  }
  if (is_vllm && !options_.has_weight_calls) return std::nullopt;
  std::optional<http::Response> response = is_vllm ? VllmCall(request.path, body) : SglangCall(request.path, body);
  if (response && response->status == 200 && request.method == "POST") weight_calls_.push_back(request.path);
  return response;
}

// As vLLM has them: some are put together under another name.
Json FakeServer::DigestsOfWeights(const std::string& prefix, size_t digits) const {
  Json digests = Json::object();
  for (const auto& [name, tensor] : decoder_->NamedWeights()) {
    const bool is_first = absl::StrContains(name, "q_proj"), is_fused = is_first || absl::StrContains(name, "k_proj");
    if (is_fused && !is_first) continue;
    digests[absl::StrCat(prefix, name, is_first ? ".qkv" : "")] =
        Sha256Of(tensor.detach(), tensor.scalar_type())->substr(0, digits);
  }
  return digests;
}

std::optional<http::Response> FakeServer::VllmCall(const std::string& path, const Json& body) {
  if (path == "/weight_info") return Said({{"weight_version", labels_[version_]}});
  if (path == "/get_world_size") return Said({{"world_size", 2}});
  if (path == "/weight_checker") return Said({{"checksums", DigestsOfWeights("dp0:pp0:pcp0:tp0:", 64)}});
  if (path == "/pause" || path == "/resume") {
    halted_ = path == "/pause";
    return Said({{"status", halted_ ? "paused" : "resumed"}});
  }
  if (path == "/collective_rpc") {
    if (body.value("method", "") != "reload_weights") return Said({{"detail", "Missing 'method'"}}, 400);
    last_update_ = body;
    http::Response served = ServeFolder(body.at("kwargs").at("weights_path"));
    return served.status == 200 ? Said({{"results", {nullptr}}}) : served;
  }
  if (path == "/update_weight_version") {
    labels_[version_] = body.at("new_version");
    return Said({{"success", true}, {"new_version", labels_[version_]}});
  }
  if (path == "/init_weight_transfer_engine") {
    last_update_ = body;
    return Said({{"message", "Weight transfer initialized"}});
  }
  if (path == "/shutdown_weight_transfer_engine") return Said({{"message", "Weight transfer shut down"}});
  if (path == "/start_weight_update") return Said({{"message", "Weight update started"}});
  if (path == "/update_weights") {
    if (!body.contains("update_info")) return Said({{"detail", "update_info is missing"}}, 422);
    const Json& info = body.at("update_info");
    return Receive(info.at("names"), info.at("dtype_names"), info.at("shapes"));
  }
  if (path == "/finish_weight_update") {
    labels_[version_] = body.at("weight_version");
    return Said({{"message", "Weight update finished"}});
  }
  return std::nullopt;
}

std::optional<http::Response> FakeServer::SglangCall(const std::string& path, const Json& body) {
  const Json done = {{"success", true}, {"message", "done"}};
  if (path == "/model_info") return Said({{"model_path", model_}, {"weight_version", labels_[version_]}});
  if (path == "/server_info") return Said({{"version", "0.5.23"}, {"tp_size", 2}});
  if (path == "/weights_checker") {
    const Json rank = {{"checksums", DigestsOfWeights("", 16)}, {"per_gpu_checksum", "0"}};
    return Said({{"success", true}, {"message", "Success."}, {"ranks", {rank}}});
  }
  if (path == "/pause_generation" || path == "/continue_generation") {
    halted_ = path == "/pause_generation";
    return Said({{"status", "ok"}});
  }
  if (path == "/update_weights_from_disk") {
    if (!body.contains("model_path")) return Said({{"message", "model_path is missing"}}, 400);
    last_update_ = body;
    http::Response served = ServeFolder(body.at("model_path"));
    if (served.status != 200) return Said({{"success", false}, {"message", served.body}}, 400);
    labels_[version_] = body.at("weight_version");
    model_ = body.at("model_path");
    return Said(done);
  }
  if (path == "/init_weights_update_group") {
    if (std::exchange(has_group_, true)) return Said({{"success", false}, {"message", "the name is taken"}}, 400);
    last_update_ = body;
    return Said(done);
  }
  if (path == "/destroy_weights_update_group") {
    return std::exchange(has_group_, false) ? Said(done) : Said({{"success", false}}, 400);
  }
  if (path == "/begin_weight_update" || path == "/end_weight_update") return Said(done);
  if (path == "/update_weights_from_distributed") {
    http::Response received = Receive(body.at("names"), body.at("dtypes"), body.at("shapes"));
    if (received.status == 200) labels_[version_] = body.at("weight_version");
    return received;
  }
  return std::nullopt;
}

http::Response FakeServer::Receive(const Json& names, const Json& dtypes, const Json& shapes) {
  const at::NoGradGuard no_grad;
  if (options_.channel == nullptr) return Said({{"detail", "Weight transfer not configured"}}, 500);
  auto decoder = std::make_shared<model::Decoder>(model::Decoder::Uninitialised(config_, at::kCPU));
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, tensor] : decoder->NamedWeights()) weights[name] = tensor;
  for (size_t i = 0; i < names.size(); ++i) {
    const at::Tensor tensor = options_.channel->Pop();
    const std::string name = names[i];
    const bool fits = dtypes[i] == "float32" && shapes[i] == tensor.sizes().vec() && weights.contains(name);
    if (!fits) return Said({{"detail", absl::StrCat("what is ", name, "?")}}, 500);
    weights.at(name).copy_(tensor);
  }
  Serve(std::move(decoder));
  return Said({{"success", true}, {"message", "Weights updated"}});
}

}  // namespace tdock::trainer
