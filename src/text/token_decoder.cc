#include "text/token_decoder.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/bpe.h"
#include "text/encode_budget.h"
#include "text/json_fields.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;
using Stage = TokenDecoder::Stage;

constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

class ToText final : public Stage {
 public:
  explicit ToText(std::string& text) : text_(text) {}
  void Push(absl::string_view part, bool) override { text_.append(part.data(), part.size()); }
  void End() override {}

 private:
  std::string& text_;
};

// A stage with another behind it.
class InnerStage : public Stage {
 public:
  explicit InnerStage(std::unique_ptr<Stage> next) : next_(std::move(next)) {}
  void End() final {
    Release();
    next_->End();
  }

 protected:
  // Gives on what was held back, and begins anew.
  virtual void Release() {}
  void Give(absl::string_view part, bool begins) { next_->Push(part, begins); }

 private:
  const std::unique_ptr<Stage> next_;
};

// Gives on one endless token.
class OneToken : public InnerStage {
 public:
  using InnerStage::InnerStage;

 protected:
  void Release() override { first_ = true; }
  void Give(absl::string_view part) {
    InnerStage::Give(part, first_);
    first_ = false;
  }
  bool first() const { return first_; }

 private:
  bool first_ = true;
};

class SpacesBetween final : public OneToken {
 public:
  using OneToken::OneToken;
  void Push(absl::string_view part, bool begins) override {
    if (begins && !first()) Give(" ");
    Give(part);
  }
};

class Fuse final : public OneToken {
 public:
  using OneToken::OneToken;
  void Push(absl::string_view part, bool) override { Give(part); }
};

// Gives the one token of a fused sequence on in one part, for stages that must see it whole.
class Gather final : public InnerStage {
 public:
  using InnerStage::InnerStage;
  void Push(absl::string_view part, bool) override {
    whole_.append(part.data(), part.size());
    any_ = true;
  }

 private:
  void Release() override {
    if (any_) Give(whole_, true);
    any_ = false;
    whole_.clear();
  }

  std::string whole_;
  bool any_ = false;
};

// Bytes spelled as characters; a token that is not is text.
class ByteLevel final : public OneToken {
 public:
  using OneToken::OneToken;
  void Push(absl::string_view part, bool) override {
    const std::optional<std::string> bytes = ByteLevelBytes(part);
    held_.append(bytes ? *bytes : std::string(part));
    GiveText(held_.size() - UnfinishedUtf8(held_));
  }

 private:
  void Release() override {
    GiveText(held_.size());
    OneToken::Release();
  }
  void GiveText(size_t bytes) {
    if (bytes > 0) Give(ReplaceInvalidUtf8(absl::string_view(held_).substr(0, bytes)));
    held_.erase(0, bytes);
  }

  std::string held_;
};

// Runs of tokens such as <0x0A>, which are bytes: a run that is not UTF-8 as a whole is a U+FFFD for each byte, so
// nothing of it is certain before it ends.
class ByteFallback final : public InnerStage {
 public:
  using InnerStage::InnerStage;
  void Push(absl::string_view part, bool begins) override {
    if (const std::optional<char> byte = ByteOf(part)) {
      run_.push_back(*byte);
      return;
    }
    Release();
    Give(part, begins);
  }

 private:
  static std::optional<char> ByteOf(absl::string_view token) {
    if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
    int value = 0;
    for (const char digit : token.substr(3, 2)) {
      if (!absl::ascii_isxdigit(static_cast<unsigned char>(digit))) return std::nullopt;
      value = value * 16 + (absl::ascii_isdigit(static_cast<unsigned char>(digit))
                                ? digit - '0'
                                : absl::ascii_tolower(static_cast<unsigned char>(digit)) - 'a' + 10);
    }
    return static_cast<char>(value);
  }
  void Release() override {
    if (run_.empty()) return;
    if (!FindInvalidUtf8(run_)) {
      Give(run_, true);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) Give(kReplacementCharacter, true);
    }
    run_.clear();
  }

  std::string run_;
};

// Replaces in each part; where a match may lie across parts, Gather comes before.
class ReplaceInTokens final : public InnerStage {
 public:
  ReplaceInTokens(std::unique_ptr<Stage> next, std::string pattern, std::string content)
      : InnerStage(std::move(next)), pattern_(std::move(pattern)), content_(std::move(content)) {}
  void Push(absl::string_view part, bool begins) override {
    Give(absl::StrReplaceAll(part, {{pattern_, content_}}), begins);
  }

 private:
  const std::string pattern_, content_;
};

// Takes up to `count` of one character from the beginning of each token.
class StripStart final : public InnerStage {
 public:
  StripStart(std::unique_ptr<Stage> next, std::string content, int32_t count)
      : InnerStage(std::move(next)), content_(std::move(content)), count_(count) {}
  void Push(absl::string_view part, bool begins) override {
    if (begins) left_ = count_;
    while (left_ > 0 && part.substr(0, content_.size()) == content_) {
      part.remove_prefix(content_.size());
      --left_;
    }
    if (!part.empty()) left_ = 0;
    Give(part, begins);
  }

 private:
  void Release() override { left_ = 0; }

  const std::string content_;
  const int32_t count_;
  int32_t left_ = 0;
};

// `replacement` is a space, but nothing in the first token where one was put before the text.
class MetaspaceToSpaces final : public InnerStage {
 public:
  MetaspaceToSpaces(std::unique_ptr<Stage> next, std::string replacement, bool prepended)
      : InnerStage(std::move(next)), replacement_(std::move(replacement)), prepended_(prepended) {}
  void Push(absl::string_view part, bool begins) override {
    if (begins) ++tokens_;
    const bool drops = prepended_ && tokens_ <= 1;
    std::string changed;
    for (size_t at = 0; at < part.size();) {
      const size_t found = std::min(part.find(replacement_, at), part.size());
      changed.append(part.data() + at, found - at);
      if (found < part.size() && !drops) changed.push_back(' ');
      at = found + replacement_.size();
    }
    Give(changed, begins);
  }

 private:
  void Release() override { tokens_ = 0; }

  const std::string replacement_;
  const bool prepended_;
  int64_t tokens_ = 0;
};

}  // namespace

template <class Made, class... Parameters>
class TokenDecoder::MakerOf final : public Maker {
 public:
  explicit MakerOf(Parameters... parameters) : parameters_(std::move(parameters)...) {}
  std::unique_ptr<Stage> Make(std::unique_ptr<Stage> next) const override {
    return std::apply(
        [&](const Parameters&... parameters) { return std::make_unique<Made>(std::move(next), parameters...); },
        parameters_);
  }

 private:
  const std::tuple<Parameters...> parameters_;
};

template <class Made, class... Parameters>
void TokenDecoder::AddStage(Parameters... parameters) {
  makers_.push_back(std::make_shared<MakerOf<Made, Parameters...>>(std::move(parameters)...));
}

absl::Status TokenDecoder::Grow(double factor, const std::string& where) {
  growth_ *= std::max(factor, 1.0);
  if (growth_ <= EncodeBudget::kMaxGrowth) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(where, ": with it, the decoder may make ", growth_,
                                                 " bytes of one; the limit is ", EncodeBudget::kMaxGrowth));
}

absl::Status TokenDecoder::AddOfType(const std::string& type, JsonFields& fields) {
  if (type == "Sequence") {
    const Json& parts = fields.Get("decoders");
    if (!parts.is_array()) return fields.Damaged("decoders", "a list");
    for (const Json& part : parts) TDOCK_RETURN_IF_ERROR(Add(part));
    return absl::OkStatus();
  }
  if (type == "Fuse") {
    AddStage<Fuse>();
    fused_ = true;
    return absl::OkStatus();
  }
  if (type == "Strip") {
    TDOCK_ASSIGN_OR_RETURN(const std::string content, fields.String("content"));
    TDOCK_ASSIGN_OR_RETURN(const int32_t start, fields.Int("start"));
    TDOCK_ASSIGN_OR_RETURN(const int32_t stop, fields.Int("stop"));
    const std::optional<Utf8Char> one = FirstUtf8Char(content);
    if (!one || one->bytes != content.size()) return fields.Damaged("content", "one character");
    if (stop != 0) return fields.Unsupported("stop", "only 0 is");
    AddStage<StripStart>(content, start);
    return absl::OkStatus();
  }
  // The others must see a token whole.
  if (fused_) AddStage<Gather>();
  if (type == "ByteFallback") {
    AddStage<ByteFallback>();
  } else if (type == "ByteLevel") {
    for (const char* option : {"add_prefix_space", "trim_offsets", "use_regex"}) {
      TDOCK_RETURN_IF_ERROR(fields.BoolOr(option, true).status());  // are for its other uses
    }
    // Bytes that are not UTF-8 become U+FFFD, of 3 bytes; such a byte is spelled with 2.
    TDOCK_RETURN_IF_ERROR(Grow(1.5, fields.where()));
    AddStage<ByteLevel>();
    fused_ = true;
  } else if (type == "Replace") {
    JsonFields pattern(fields.Get("pattern"), absl::StrCat(fields.where(), ": \"pattern\""));
    if (!pattern.Get("Regex").is_null()) return pattern.Unsupported("Regex", "only \"String\" is");
    TDOCK_ASSIGN_OR_RETURN(const std::string old, pattern.String("String"));
    TDOCK_RETURN_IF_ERROR(pattern.Finish());
    if (old.empty()) return pattern.Damaged("String", "text that is not empty");
    TDOCK_ASSIGN_OR_RETURN(const std::string content, fields.String("content"));
    TDOCK_RETURN_IF_ERROR(Grow(static_cast<double>(content.size()) / static_cast<double>(old.size()), fields.where()));
    AddStage<ReplaceInTokens>(old, content);
  } else if (type == "Metaspace") {
    TDOCK_ASSIGN_OR_RETURN(const std::string replacement, fields.String("replacement"));
    const std::optional<Utf8Char> one = FirstUtf8Char(replacement);
    if (!one || one->bytes != replacement.size()) return fields.Damaged("replacement", "one character");
    TDOCK_RETURN_IF_ERROR(fields.BoolOr("split", true).status());
    fields.Get("str_rep");
    TDOCK_ASSIGN_OR_RETURN(const bool add_prefix_space, fields.BoolOr("add_prefix_space", true));
    const Json& scheme = fields.Get("prepend_scheme");
    if (!scheme.is_null() && scheme != "always" && scheme != "first" && scheme != "never") {
      return fields.Unsupported("prepend_scheme", "only always, first and never are");
    }
    if (!scheme.is_null() && scheme != "never" && !add_prefix_space) {
      return fields.Damaged("add_prefix_space", "true, as \"prepend_scheme\" says");
    }
    AddStage<MetaspaceToSpaces>(replacement, scheme.is_null() ? add_prefix_space : scheme != "never");
  } else {
    return fields.Unsupported("type", "only ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip and Sequence are");
  }
  return absl::OkStatus();
}

absl::Status TokenDecoder::Add(const Json& json) {
  if (++components_ > kMaxComponents) {
    return absl::InvalidArgumentError(
        absl::StrCat("the decoder is a sequence of more than ", kMaxComponents, " components, the limit"));
  }
  JsonFields untyped(json, "the decoder");
  TDOCK_ASSIGN_OR_RETURN(const std::string type, untyped.String("type"));
  JsonFields fields(json, absl::StrCat("the decoder ", type));
  fields.Get("type");
  TDOCK_RETURN_IF_ERROR(AddOfType(type, fields));
  return fields.Finish();
}

absl::StatusOr<TokenDecoder> TokenDecoder::Read(const Json& json) {
  TokenDecoder made;
  if (json.is_null()) {
    made.AddStage<SpacesBetween>();
  } else {
    TDOCK_RETURN_IF_ERROR(made.Add(json));
  }
  return made;
}

std::unique_ptr<TokenDecoder::Stage> TokenDecoder::Begin(std::string& text) const {
  std::unique_ptr<Stage> stage = std::make_unique<ToText>(text);
  for (auto maker = makers_.rbegin(); maker != makers_.rend(); ++maker) stage = (*maker)->Make(std::move(stage));
  return stage;
}

}  // namespace tdock::text
