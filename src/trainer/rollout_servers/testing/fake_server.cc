#include "trainer/rollout_servers/testing/fake_server.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/base/env.h"
#include "core/tensor/checksum.h"
#include "model/decoder/checkpoint.h"

namespace tdock::trainer {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostPieceBytes = 1000;  // several pieces even of a tiny model

http::Response Problem(int status, const std::string& message) {
  return {.status = status, .body = Json{{"error", {{"message", message}}}}.dump()};
}

std::map<std::string, std::string> FieldsOf(const std::string& query) {
  std::map<std::string, std::string> fields;
  for (const absl::string_view field : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> one = absl::StrSplit(field, absl::MaxSplits('=', 1));
    fields.insert(one);
  }
  return fields;
}

Json VersionsOf(const engine::Completion& completion) {
  Json versions = Json::array();
  for (const engine::WeightsSpan& span : completion.weights) {
    versions.push_back({{"version", span.version}, {"tokens", span.tokens}});
  }
  return versions;
}

}  // namespace

FakeServer::FakeServer(const model::Decoder& decoder, FakeServerOptions options)
    : options_(std::move(options)),
      config_(decoder.config()),
      decoder_(std::make_shared<model::Decoder>(decoder.Clone())),
      engine_(std::make_unique<engine::Engine>(*decoder_, engine::EngineOptions{})) {
  auto server = http::Server::Start({.port = options_.port}, [this](const Exchange& exchange) { Handle(exchange); });
  EXPECT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
}

FakeServer::~FakeServer() { server_.reset(); }

std::string FakeServer::url() const { return absl::StrCat("http://127.0.0.1:", port()); }

void FakeServer::Set(Intercept intercept) {
  MutexLock lock(mu_);
  intercept_ = std::move(intercept);
}

void FakeServer::Change(std::function<void(Json&)> change) {
  MutexLock lock(mu_);
  change_ = std::move(change);
}

void FakeServer::Hold() {
  MutexLock lock(mu_);
  holds_ = true;
}

void FakeServer::Release() {
  std::vector<Exchange> held;
  {
    MutexLock lock(mu_);
    holds_ = false;
    held = std::exchange(held_, {});
  }
  for (const Exchange& exchange : held) {
    http::Response response;
    {
      MutexLock lock(mu_);
      response = Complete(Json::parse(exchange->request().body));
    }
    exchange->Send(std::move(response));
  }
}

int64_t FakeServer::asked() const {
  MutexLock lock(mu_);
  return asked_;
}

int64_t FakeServer::gone() const { return *gone_; }

int64_t FakeServer::updates() const {
  MutexLock lock(mu_);
  return updates_;
}

Json FakeServer::last_ask() const {
  MutexLock lock(mu_);
  return last_ask_;
}

Json FakeServer::last_update() const {
  MutexLock lock(mu_);
  return last_update_;
}

void FakeServer::Handle(const Exchange& exchange) {
  const http::Request& request = exchange->request();
  exchange->OnGone([gone = gone_] { ++*gone; });
  http::Response response = Problem(404, absl::StrCat("no ", request.path));
  {
    MutexLock lock(mu_);
    const bool is_completion = request.path == "/v1/completions";
    if (is_completion) {
      ++asked_;
      last_ask_ = Json::parse(request.body);
    }
    std::optional<http::Response> first = intercept_ ? intercept_(request) : std::nullopt;
    if (!first && is_completion && holds_) {
      held_.push_back(exchange);
      return;
    }
    if (first) {
      response = *std::move(first);
    } else if (request.path == "/v1/models") {
      response = Models();
    } else if (is_completion) {
      response = Complete(last_ask_);
    } else if (request.path == "/update_weights") {
      response = Update(request);
    }
  }
  exchange->Send(std::move(response));
}

http::Response FakeServer::Models() {
  Json card = {
      {"id", "tiny"}, {"owned_by", options_.is_tdock ? "tdock" : "vllm"}, {"max_model_len", options_.max_model_len}};
  if (options_.is_tdock) card.update({{"instance", options_.instance}, {"weight_version", version_}});
  return {.body = Json{{"object", "list"}, {"data", {card}}}.dump()};
}

http::Response FakeServer::Complete(const Json& ask) {
  if (ask.contains("identity") != options_.is_tdock) return Problem(400, "'identity' is for tdock, and needed there");
  engine::Request request;
  request.prompt.tokens = ask.at("prompt").get<std::vector<int32_t>>();
  request.prompt.samples = ask.at("n");
  request.prompt.identity =
      options_.is_tdock ? std::stoull(ask.at("identity").get<std::string>()) : ask.at("seed").get<uint64_t>();
  const int64_t top_k = ask.at("top_k");
  request.sampling = {.temperature = ask.at("temperature"),
                      .max_new_tokens = ask.at("max_tokens"),
                      .seed = static_cast<uint64_t>(ask.at("seed").get<int64_t>()),
                      .top_k = top_k == -1 ? 0 : top_k,
                      .top_p = ask.at("top_p"),
                      .min_p = ask.at("min_p"),
                      .repetition_penalty = ask.at("repetition_penalty"),
                      .presence_penalty = ask.at("presence_penalty"),
                      .min_new_tokens = ask.at("min_tokens"),
                      .ignore_eos = ask.at("ignore_eos"),
                      .stop_tokens = ask.at("stop_token_ids").get<std::vector<int32_t>>()};
  Json reply = {{"object", "text_completion"}, {"choices", Json::array()}};
  if (options_.is_tdock) reply["system_fingerprint"] = absl::StrCat("tdock-", options_.instance);
  std::vector<engine::Request> requests(1, std::move(request));
  const absl::Status answered = engine_->AnswerAll(std::move(requests), [&](std::span<engine::Answer> ended) {
    for (const engine::Answer& answer : ended) {
      const engine::Completion& completion = answer.completion;
      Json choice = {{"index", answer.sample},
                     {"token_ids", completion.tokens},
                     {"logprobs", {{"token_logprobs", completion.log_probs}}},
                     {"finish_reason", completion.finished ? "stop" : "length"}};
      if (options_.is_tdock) choice["weight_versions"] = VersionsOf(completion);
      reply["choices"].push_back(std::move(choice));
    }
    return absl::OkStatus();
  });
  if (!answered.ok()) return Problem(400, std::string(answered.message()));
  if (change_) change_(reply);
  return {.body = reply.dump()};
}

http::Response FakeServer::Update(const http::Request& request) {
  std::map<std::string, std::string> fields = FieldsOf(request.query);
  if (fields.empty()) {
    last_update_ = Json::parse(request.body);
    if (last_update_.contains("tensors")) return Begin(last_update_);
    ServeFolder(last_update_.at("model_path"));
    return {.body = Json{{"success", true}}.dump()};
  }
  if (!upload_ || fields["upload"] != "ab12") return Problem(404, "another upload");
  if (fields.contains("checksum")) return End(fields["checksum"]);
  const size_t offset = std::stoull(fields["offset"]);
  if (offset > upload_->bytes.size()) return Problem(409, "a gap");
  upload_->bytes.resize(offset);
  upload_->bytes += request.body;
  return {.body = Json{{"received", upload_->bytes.size()}}.dump()};
}

http::Response FakeServer::Begin(const Json& begun) {
  if (begun.at("weight_version") <= version_) return Problem(400, "the version must be above that which is served");
  std::map<std::string, std::vector<int64_t>> wanted, given;
  for (const auto& [name, tensor] : decoder_->NamedWeights()) wanted[name] = tensor.sizes().vec();
  for (const Json& one : begun.at("tensors")) given[one.at("name")] = one.at("shape").get<std::vector<int64_t>>();
  if (given != wanted) return Problem(400, "other names or shapes");
  upload_ = Upload{.begun = begun, .bytes = ""};
  return {.body = Json{{"upload", "ab12"}, {"most_piece_bytes", kMostPieceBytes}}.dump()};
}

http::Response FakeServer::End(const std::string& checksum) {
  const at::NoGradGuard no_grad;
  const std::string& bytes = upload_->bytes;
  if (checksum != absl::StrFormat("%016x", Checksum(std::as_bytes(std::span(bytes.data(), bytes.size()))))) {
    return Problem(400, "another checksum");
  }
  auto decoder = std::make_shared<model::Decoder>(model::Decoder::Uninitialised(config_, at::kCPU));
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, tensor] : decoder->NamedWeights()) weights[name] = tensor;
  size_t offset = 0;
  for (const Json& one : upload_->begun.at("tensors")) {
    at::Tensor& weight = weights.at(one.at("name"));
    at::Tensor read = at::empty(weight.sizes(), at::kFloat);
    if (offset + read.nbytes() > bytes.size()) return Problem(409, "bytes are missing");
    std::memcpy(read.mutable_data_ptr(), bytes.data() + offset, read.nbytes());
    offset += read.nbytes();
    weight.copy_(read);
  }
  version_ = upload_->begun.at("weight_version");
  upload_.reset();
  engine_->Serve(decoder, version_);
  decoder_ = decoder;
  ++updates_;
  return {
      .body =
          Json{{"success", true}, {"weight_version", absl::StrCat(version_)}, {"instance", options_.instance}}.dump()};
}

void FakeServer::ServeFolder(const std::string& folder) {
  auto loaded = model::LoadCheckpoint(Env::Real(), folder, at::kCPU);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  auto decoder = std::make_shared<model::Decoder>(*std::move(loaded));
  engine_->Serve(decoder, ++version_);
  decoder_ = decoder;
  ++updates_;
}

}  // namespace tdock::trainer
