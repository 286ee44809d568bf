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

std::string OwnerOf(ServerKind kind) {
  switch (kind) {
    case ServerKind::kTdock:
      return "tdock";
    case ServerKind::kVllm:
      return "vllm";
    case ServerKind::kSglang:
      return "sglang";
    case ServerKind::kOther:
      break;
  }
  return "somebody";
}

std::optional<AnswerForm> FormAt(const std::string& path) {
  for (const AnswerForm form : {AnswerForm::kCompletions, AnswerForm::kTokens, AnswerForm::kGenerate}) {
    if (path == PathOf(form)) return form;
  }
  return std::nullopt;
}

// With the names of OpenAI's completions.
Json PlainAsk(const Json& ask, AnswerForm form) {
  if (form == AnswerForm::kCompletions) return ask;
  Json plain = ask.at("sampling_params");
  if (form == AnswerForm::kTokens) {
    plain["prompt"] = ask.at("token_ids");
    return plain;
  }
  plain["prompt"] = ask.at("input_ids");
  plain["max_tokens"] = plain.at("max_new_tokens");
  plain["min_tokens"] = plain.at("min_new_tokens");
  plain["seed"] = plain.at("sampling_seed");
  return plain;
}

// An answer without its index and, in completions, without the versions of its weights.
Json ChoiceIn(AnswerForm form, const engine::Completion& completion, const std::map<int64_t, std::string>& labels) {
  const std::string reason = completion.finished ? "stop" : "length";
  if (form == AnswerForm::kCompletions) {
    return {{"token_ids", completion.tokens},
            {"logprobs", {{"token_logprobs", completion.log_probs}}},
            {"finish_reason", reason}};
  }
  Json spans = Json::array(), content = Json::array(), pairs = Json::array();
  int64_t begin = 0;
  for (const engine::WeightsSpan& span : completion.weights) {
    spans.push_back({{"version", labels.at(span.version)}, {"start", begin}, {"end", begin + span.tokens}});
    begin += span.tokens;
  }
  for (size_t i = 0; i < completion.tokens.size(); ++i) {
    content.push_back({{"token_id", completion.tokens[i]}, {"logprob", completion.log_probs[i]}, {"rank", 1}});
    pairs.push_back(Json::array({completion.log_probs[i], completion.tokens[i], nullptr}));
  }
  if (form == AnswerForm::kTokens) {
    return {{"token_ids", completion.tokens},
            {"logprobs", {{"content", content}}},
            {"finish_reason", reason},
            {"weight_versions", spans}};
  }
  const std::string last = labels.at(completion.weights.back().version);
  return {{"output_ids", completion.tokens},
          {"meta_info",
           {{"finish_reason", {{"type", reason}}},
            {"output_token_logprobs", pairs},
            {"weight_version", last},
            {"weight_versions", spans}}}};
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
    held = TakeHeld();
  }
  AnswerAll(held);
}

std::vector<FakeServer::Exchange> FakeServer::TakeHeld() {
  return holds_ || halted_ ? std::vector<Exchange>() : std::exchange(held_, {});
}

void FakeServer::AnswerAll(const std::vector<Exchange>& held) {
  for (const Exchange& exchange : held) {
    http::Response response;
    {
      MutexLock lock(mu_);
      response = Complete(exchange->request());
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
  std::vector<Exchange> released;
  {
    MutexLock lock(mu_);
    const bool is_completion = FormAt(request.path).has_value() && request.body != "{}";
    if (is_completion) {
      ++asked_;
      last_ask_ = Json::parse(request.body);
    }
    std::optional<http::Response> first = intercept_ ? intercept_(request) : std::nullopt;
    if (!first && is_completion && (holds_ || halted_)) {
      held_.push_back(exchange);
      return;
    }
    const bool is_foreign = options_.kind == ServerKind::kVllm || options_.kind == ServerKind::kSglang;
    if (!first && is_foreign && !is_completion && request.path != "/v1/models") first = Foreign(request);
    if (first) {
      response = *std::move(first);
    } else if (request.path == "/v1/models") {
      response = Models();
    } else if (is_completion) {
      response = Complete(request);
    } else if (request.path == "/update_weights" && !is_foreign) {
      response = Update(request);
    }
    released = TakeHeld();
  }
  exchange->Send(std::move(response));
  AnswerAll(released);
}

http::Response FakeServer::Models() {
  Json card = {{"id", model_}, {"owned_by", OwnerOf(options_.kind)}, {"max_model_len", options_.max_model_len}};
  if (options_.kind == ServerKind::kTdock) {
    card.update({{"instance", options_.instance},
                 {"dtype", options_.dtype},
                 {"kernels", options_.kernels},
                 {"weight_version", version_}});
  }
  return {.body = Json{{"object", "list"}, {"data", {card}}}.dump()};
}

http::Response FakeServer::Complete(const http::Request& asked) {
  const AnswerForm form = *FormAt(asked.path);
  const bool is_tdock = options_.kind == ServerKind::kTdock;
  const bool has_form =
      form == AnswerForm::kCompletions || (form == AnswerForm::kGenerate) == (options_.kind == ServerKind::kSglang);
  if (!has_form || (form == AnswerForm::kTokens && !options_.has_tokens)) return Problem(404, "no such interface");
  const Json ask = PlainAsk(Json::parse(asked.body), form);
  if (ask.contains("identity") != is_tdock) return Problem(400, "'identity' is for tdock, and needed there");
  engine::Request request;
  request.prompt.tokens = ask.at("prompt").get<std::vector<int32_t>>();
  request.prompt.samples = ask.at("n");
  request.prompt.identity =
      is_tdock ? std::stoull(ask.at("identity").get<std::string>()) : ask.at("seed").get<uint64_t>();
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
  std::vector<Json> choices(static_cast<size_t>(request.prompt.samples));
  const std::map<int64_t, std::string> labels = labels_;
  std::vector<engine::Request> requests(1, std::move(request));
  const absl::Status answered = engine_->AnswerAll(std::move(requests), [&](std::span<engine::Answer> ended) {
    for (const engine::Answer& answer : ended) {
      Json choice = ChoiceIn(form, answer.completion, labels);
      if (is_tdock) choice["weight_versions"] = VersionsOf(answer.completion);
      if (form != AnswerForm::kGenerate) choice["index"] = answer.sample;
      choices[static_cast<size_t>(answer.sample)] = std::move(choice);
    }
    return absl::OkStatus();
  });
  if (!answered.ok()) return Problem(400, std::string(answered.message()));
  Json reply = {{"object", "text_completion"}, {"choices", choices}};
  if (is_tdock) reply["system_fingerprint"] = absl::StrCat("tdock-", options_.instance);
  if (form == AnswerForm::kGenerate) reply = choices.size() == 1 ? choices.front() : Json(choices);
  if (change_) change_(reply);
  return {.body = reply.dump()};
}

http::Response FakeServer::Update(const http::Request& request) {
  std::map<std::string, std::string> fields = FieldsOf(request.query);
  if (fields.empty()) {
    last_update_ = Json::parse(request.body);
    if (last_update_.contains("tensors")) return Begin(last_update_);
    if (!last_update_.contains("model_path")) return Problem(400, "no model_path");
    return ServeFolder(last_update_.at("model_path"));
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

http::Response FakeServer::ServeFolder(const std::string& folder) {
  auto loaded = model::LoadCheckpoint(Env::Real(), folder, at::kCPU);
  if (!loaded.ok()) return Problem(500, std::string(loaded.status().message()));
  Serve(std::make_shared<model::Decoder>(*std::move(loaded)));
  return {.body = Json{{"success", true}}.dump()};
}

void FakeServer::Serve(std::shared_ptr<const model::Decoder> decoder) {
  labels_[version_ + 1] = labels_[version_];
  engine_->Serve(decoder, ++version_);
  decoder_ = std::move(decoder);
  ++updates_;
}

}  // namespace tdock::trainer
