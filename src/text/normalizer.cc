#include "text/normalizer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "text/json_fields.h"
#include "text/regex.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;
using Made = absl::StatusOr<std::unique_ptr<Normalizer>>;

// Maximum growth of one character, which has at most 4 bytes and does not vanish.
constexpr size_t kMaxShrinkOfCharacter = 4;
// Composed characters had at most 3 times their bytes when they were decomposed (Unicode Standard Annex 15).
constexpr size_t kMaxShrinkOfComposition = 3;

absl::Status Change(const absl::StatusOr<std::vector<CharChange>>& changes, absl::string_view step,
                    EncodeBudget& budget, AlignedText& text) {
  TDOCK_RETURN_IF_ERROR(changes.status());
  size_t bytes = 0;
  for (const CharChange& change : *changes) bytes += Utf8Bytes(change.code);
  TDOCK_RETURN_IF_ERROR(budget.CheckGrowth(bytes, step));
  text.Change(*changes);
  return absl::OkStatus();
}

class UnicodeForm final : public Normalizer {
 public:
  UnicodeForm(NormalForm form, const std::string& name) : form_(form), step_(absl::StrCat("the normalizer ", name)) {}
  absl::Status Apply(AlignedText& text, EncodeBudget& budget) const override {
    if (!MayNormalize(text.view(), form_)) return absl::OkStatus();
    return Change(Normalized(text.view(), form_, budget), step_, budget, text);
  }
  std::optional<size_t> max_shrink() const override {
    const bool composes = form_ == NormalForm::kNfc || form_ == NormalForm::kNfkc;
    return kMaxShrinkOfCharacter * (composes ? kMaxShrinkOfComposition : 1);
  }

 private:
  const NormalForm form_;
  const std::string step_;
};

class Lowercase final : public Normalizer {
 public:
  absl::Status Apply(AlignedText& text, EncodeBudget& budget) const override {
    return Change(Lowercased(text.view(), budget), "the normalizer Lowercase", budget, text);
  }
  std::optional<size_t> max_shrink() const override { return kMaxShrinkOfCharacter; }
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Apply(AlignedText& text, EncodeBudget& budget) const override {
    if (text.size() == 0) return absl::OkStatus();
    TDOCK_RETURN_IF_ERROR(budget.CheckGrowth(prefix_.size() + text.size(), "the normalizer Prepend"));
    AlignedText changed = text.Empty();
    changed.Append(prefix_, text, 0);
    changed.Append(text, {0, text.size()});
    text = std::move(changed);
    return absl::OkStatus();
  }
  std::optional<size_t> max_shrink() const override { return 1; }

 private:
  const std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  // `literal`: what the pattern matches, if it matches only that.
  Replace(Regex pattern, std::string literal, std::string content)
      : pattern_(std::move(pattern)), literal_(std::move(literal)), content_(std::move(content)) {}
  absl::Status Apply(AlignedText& text, EncodeBudget& budget) const override {
    if (text.size() == 0) return absl::OkStatus();  // like in `tokenizers`, nothing matches there
    TDOCK_ASSIGN_OR_RETURN(const std::vector<TextRange> matches, pattern_.FindAll(text.view(), budget));
    if (matches.empty()) return absl::OkStatus();
    size_t bytes = text.size() + matches.size() * content_.size();
    for (const TextRange match : matches) bytes -= match.end - match.begin;
    TDOCK_RETURN_IF_ERROR(budget.CheckGrowth(bytes, "the normalizer Replace"));
    AlignedText changed = text.Empty();
    size_t done = 0;
    for (const TextRange match : matches) {
      changed.Append(text, {done, match.begin});
      // It counts as coming from the last character that it replaces; in place of nothing, from the one before.
      changed.AppendBehind(content_, text, match.end);
      TDOCK_RETURN_IF_ERROR(budget.Spend(content_.size() + match.end - done));
      done = match.end;
    }
    changed.Append(text, {done, text.size()});
    text = std::move(changed);
    return absl::OkStatus();
  }
  std::optional<size_t> max_shrink() const override {
    if (literal_.empty() || content_.empty()) return std::nullopt;
    return (literal_.size() - 1) / content_.size() + 1;
  }
  void AddExamples(std::vector<std::string>& examples) const override {
    if (!literal_.empty()) examples.push_back(literal_);
  }

 private:
  const Regex pattern_;
  const std::string literal_, content_;
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Apply(AlignedText& text, EncodeBudget& budget) const override {
    TDOCK_RETURN_IF_ERROR(budget.Spend(text.size()));
    absl::string_view rest = text.view();
    size_t begin = 0;
    while (left_ && begin < rest.size()) {
      const Utf8Char next = *FirstUtf8Char(rest.substr(begin));
      if (!IsWhiteSpace(next.code)) break;
      begin += next.bytes;
    }
    size_t end = rest.size();
    while (right_ && end > begin) {
      const Utf8Char last = LastUtf8Char(rest.substr(0, end));
      if (!IsWhiteSpace(last.code)) break;
      end -= last.bytes;
    }
    if (end - begin == rest.size()) return absl::OkStatus();
    AlignedText changed = text.Empty();
    if (end > begin) changed.Append(text, {begin, end});
    text = std::move(changed);
    return absl::OkStatus();
  }
  std::optional<size_t> max_shrink() const override { return std::nullopt; }

 private:
  const bool left_, right_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  absl::Status Apply(AlignedText& text, EncodeBudget& budget) const override {
    for (const auto& step : steps_) TDOCK_RETURN_IF_ERROR(step->Apply(text, budget));
    return absl::OkStatus();
  }
  std::optional<size_t> max_shrink() const override {
    size_t product = 1;
    for (const auto& step : steps_) {
      const std::optional<size_t> shrink = step->max_shrink();
      if (!shrink || *shrink > kMaxTextBytes / product) return std::nullopt;
      product *= *shrink;
    }
    return product;
  }
  void AddExamples(std::vector<std::string>& examples) const override {
    for (const auto& step : steps_) step->AddExamples(examples);
  }

 private:
  const std::vector<std::unique_ptr<Normalizer>> steps_;
};

Made ReadReplace(JsonFields& fields) {
  TDOCK_ASSIGN_OR_RETURN(Regex pattern, ReadPattern(fields));
  TDOCK_ASSIGN_OR_RETURN(std::string content, fields.String("content"));
  const Json& literal = fields.Get("pattern");  // an object with one text, as ReadPattern() has found
  return std::make_unique<Replace>(std::move(pattern), literal.value("String", std::string()), std::move(content));
}

// `more`: how many components there may be.
Made ReadComponent(const Json& json, size_t& more);

Made ReadSequence(JsonFields& fields, size_t& more) {
  const Json& parts = fields.Get("normalizers");
  if (!parts.is_array()) return fields.Damaged("normalizers", "a list");
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (const Json& part : parts) {
    TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> step, ReadComponent(part, more));
    if (step != nullptr) steps.push_back(std::move(step));
  }
  return std::make_unique<NormalizerSequence>(std::move(steps));
}

Made ReadOfType(const std::string& type, JsonFields& fields, size_t& more) {
  if (type == "NFC") return std::make_unique<UnicodeForm>(NormalForm::kNfc, type);
  if (type == "NFD") return std::make_unique<UnicodeForm>(NormalForm::kNfd, type);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(NormalForm::kNfkc, type);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(NormalForm::kNfkd, type);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "Replace") return ReadReplace(fields);
  if (type == "Sequence") return ReadSequence(fields, more);
  if (type == "Prepend") {
    TDOCK_ASSIGN_OR_RETURN(std::string prefix, fields.String("prepend"));
    return std::make_unique<Prepend>(std::move(prefix));
  }
  if (type == "Strip") {
    TDOCK_ASSIGN_OR_RETURN(const bool left, fields.Bool("strip_left"));
    TDOCK_ASSIGN_OR_RETURN(const bool right, fields.Bool("strip_right"));
    return std::make_unique<Strip>(left, right);
  }
  return fields.Unsupported("type", "only NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip and Sequence are");
}

Made ReadComponent(const Json& json, size_t& more) {
  if (json.is_null()) return nullptr;
  if (more-- == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the normalizer is a sequence of more than ", kMaxComponents, " components, the limit"));
  }
  JsonFields fields(json, "the normalizer");
  TDOCK_ASSIGN_OR_RETURN(const std::string type, fields.String("type"));
  JsonFields typed(json, absl::StrCat("the normalizer ", type));
  typed.Get("type");
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> made, ReadOfType(type, typed, more));
  TDOCK_RETURN_IF_ERROR(typed.Finish());
  return made;
}

}  // namespace

absl::StatusOr<Regex> ReadPattern(JsonFields& fields) {
  const Json& json = fields.Get("pattern");
  if (json.is_object() && json.size() == 1 && json.begin().value().is_string()) {
    const auto& text = json.begin().value().get_ref<const std::string&>();
    if (text.empty()) return fields.Damaged("pattern", "{\"String\": …} or {\"Regex\": …} with some text");
    absl::StatusOr<Regex> pattern = absl::UnimplementedError("");
    if (json.begin().key() == "String") pattern = Regex::Literal(text);
    if (json.begin().key() == "Regex") pattern = Regex::Compile(text);
    if (pattern.ok()) return pattern;
    if (!pattern.status().message().empty()) return Annotate(pattern.status(), fields.where());
  }
  return fields.Damaged("pattern", "{\"String\": …} or {\"Regex\": …}");
}

Made ReadNormalizer(const Json& json) {
  size_t more = kMaxComponents;
  return ReadComponent(json, more);
}

}  // namespace tdock::text
