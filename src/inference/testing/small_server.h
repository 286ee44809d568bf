// For tests: a server of a small model in this process, and a client that asks it.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/testing/patience.h"
#include "core/http/testing/raw_client.h"
#include "engine/engine.h"
#include "inference/model_server.h"
#include "model/decoder/testing/models.h"
#include "nlohmann/json.hpp"
#include "text/char_tokenizer.h"

namespace tdock::inference {

// One token per character. A text that begins with '!' becomes tokens only after Release(): until then it is polled for
// whether anybody still wants it.
class PatientTokenizer final : public text::Tokenizer {
 public:
  // What JSON and the template of SmallServer need, and some more.
  static constexpr char kAlphabet[] = " \n!\"(),-.01:X[\\]abefilnrstu{}é";

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              const text::EncodeOptions& options = {}) const override {
    if (absl::StartsWith(text, "!")) {
      ++waiting_;
      absl::Status stopped;
      Eventually([&] {
        if (options.stop) stopped = options.stop();
        return released_ || !stopped.ok();
      });
      --waiting_;
      if (!stopped.ok()) {
        ++stopped_;
        return stopped;
      }
    }
    return own_->Encode(text, options);
  }
  absl::StatusOr<text::Encoding> EncodeWithRanges(absl::string_view text,
                                                  const text::EncodeOptions& options = {}) const override {
    return own_->EncodeWithRanges(text, options);
  }
  std::unique_ptr<text::StreamDecoder> MakeStreamDecoder(text::SpecialTokens special) const override {
    return own_->MakeStreamDecoder(special);
  }
  std::optional<int32_t> TokenToId(absl::string_view token) const override { return own_->TokenToId(token); }
  std::optional<std::string> IdToToken(int32_t id) const override { return own_->IdToToken(id); }
  bool IsSpecial(int32_t id) const override { return own_->IsSpecial(id); }
  std::optional<size_t> max_token_bytes() const override { return own_->max_token_bytes(); }
  int32_t vocab_size() const override { return own_->vocab_size(); }
  std::optional<int32_t> bos_id() const override { return own_->bos_id(); }
  std::optional<int32_t> eos_id() const override { return own_->eos_id(); }
  std::optional<int32_t> pad_id() const override { return own_->pad_id(); }
  absl::Status Save(Env& env, const std::string& folder) const override { return own_->Save(env, folder); }

  int waiting() const { return waiting_; }
  int stopped() const { return stopped_; }
  void Release() { released_ = true; }

 private:
  const std::unique_ptr<text::CharTokenizer> own_ = text::CharTokenizer::Create(kAlphabet).value();
  mutable std::atomic<int> waiting_ = 0, stopped_ = 0;
  std::atomic<bool> released_ = false;
};

class SmallServer {
 public:
  static constexpr int64_t kContext = 400;

  // With so many replicas, each of a model of its own.
  explicit SmallServer(ModelServerOptions options = {}, size_t replicas = 1)
      : options_(std::move(options)), engines_(replicas) {
    model::ModelConfig config = model::TinyConfig(model::Architecture::kQwen2, /*tied_head=*/false);
    config.vocab_size = tokenizer_.vocab_size();
    config.max_positions = kContext;
    for (size_t i = 0; i < replicas; ++i) {
      decoders_.push_back(model::TinyDecoder(config, 5, at::kCPU));
      decoders_.back().SetBatchInvariant(true);
    }
  }
  // Before Start(): all logits of this replica become NaN.
  void Break(size_t replica) {
    const at::NoGradGuard no_grad;
    decoders_[replica].parameters().front().fill_(std::numeric_limits<float>::quiet_NaN());
  }
  SmallServer& Start(SamplingAsk preferred = {}) {
    ServedModel model{.names = {"small"}, .tokenizer = &tokenizer_};
    model.preferred = std::move(preferred);
    model.chat_template = text::ChatTemplate::Parse(
        "{% for m in messages %}({{ m.role }}){{ m.content }}{% endfor %}{% if add_generation_prompt %}(a){% endif %}");
    model.end_tokens = {end_token()};
    model.context_length = kContext;
    model.vocab_size = tokenizer_.vocab_size();
    for (size_t i = 0; i < engines_.size(); ++i) {
      engines_[i] = std::make_unique<engine::Engine>(
          decoders_[i], engine::EngineOptions{.end_tokens = model.end_tokens, .tokenizer = &tokenizer_});
      model.engines.push_back(engines_[i].get());
    }
    server_ = ModelServer::Start(std::move(model), options_).value();
    return *this;
  }

  PatientTokenizer& tokenizer() { return tokenizer_; }
  const PatientTokenizer& tokenizer() const { return tokenizer_; }
  std::unique_ptr<ModelServer>& server() { return server_; }
  int port() const { return server_->port(); }
  int32_t end_token() const { return *tokenizer_.eos_id(); }
  int32_t IdOf(absl::string_view character) const { return tokenizer_.TokenToId(character).value(); }

  static std::string Request(absl::string_view method, absl::string_view path, absl::string_view body,
                             absl::string_view version = "1.1") {
    return absl::StrCat(method, " ", path, " HTTP/", version, "\r\nHost: 127.0.0.1\r\nContent-Length: ", body.size(),
                        "\r\n\r\n", body);
  }
  struct Reply {
    int status = 0;
    std::string body = {};
    nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false); }
    std::string code() const { return json()["error"].value("code", nlohmann::json()).dump(); }
    std::string param() const { return json()["error"].value("param", nlohmann::json()).dump(); }
    std::string message() const { return json()["error"].value("message", ""); }
  };
  // On a connection of its own, which ends with the reply.
  Reply Ask(absl::string_view method, absl::string_view path, absl::string_view body = "") const {
    http::RawClient client(port());
    client.Send(Request(method, path, body, "1.0"));
    const std::string all = client.ReadAll();
    Reply reply;
    const size_t end = all.find("\r\n\r\n");
    if (end == std::string::npos || all.size() < 12) return reply;
    if (!absl::SimpleAtoi(all.substr(9, 3), &reply.status)) reply.status = 0;
    reply.body = all.substr(end + 4);
    return reply;
  }
  Reply Post(absl::string_view path, const nlohmann::json& fields) const { return Ask("POST", path, fields.dump()); }

 private:
  const ModelServerOptions options_;
  PatientTokenizer tokenizer_;
  std::vector<model::Decoder> decoders_;
  std::vector<std::unique_ptr<engine::Engine>> engines_;
  std::unique_ptr<ModelServer> server_;
};

}  // namespace tdock::inference
