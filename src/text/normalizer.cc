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

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  absl::Status Apply(AlignedText& text) const override {
    if (MayNormalize(text.view(), form_)) text.Change(Normalized(text.view(), form_), 0);
    return absl::OkStatus();
  }

 private:
  const NormalForm form_;
};

class Lowercase final : public Normalizer {
 public:
  absl::Status Apply(AlignedText& text) const override {
    text.Change(Lowercased(text.view()), 0);
    return absl::OkStatus();
  }
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  absl::Status Apply(AlignedText& text) const override {
    if (text.size() == 0) return absl::OkStatus();
    AlignedText changed = text.Empty();
    changed.Append(prefix_, text, 0);
    changed.Append(text, {0, text.size()});
    text = std::move(changed);
    return absl::OkStatus();
  }

 private:
  const std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  Replace(Regex pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  absl::Status Apply(AlignedText& text) const override {
    if (text.size() == 0) return absl::OkStatus();  // like in `tokenizers`, nothing matches there
    TDOCK_ASSIGN_OR_RETURN(const std::vector<TextRange> matches, pattern_.FindAll(text.view()));
    if (matches.empty()) return absl::OkStatus();
    AlignedText changed = text.Empty();
    size_t done = 0;
    for (const TextRange match : matches) {
      changed.Append(text, {done, match.begin});
      // It counts as coming from the last character that it replaces; in place of nothing, from the one before.
      changed.AppendBehind(content_, text, match.end);
      done = match.end;
      if (changed.size() > kMaxTextBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("the normalizer Replace makes the text longer than ", kMaxTextBytes, " bytes"));
      }
    }
    changed.Append(text, {done, text.size()});
    text = std::move(changed);
    return absl::OkStatus();
  }

 private:
  const Regex pattern_;
  const std::string content_;
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  absl::Status Apply(AlignedText& text) const override {
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

 private:
  const bool left_, right_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  absl::Status Apply(AlignedText& text) const override {
    for (const auto& step : steps_) TDOCK_RETURN_IF_ERROR(step->Apply(text));
    return absl::OkStatus();
  }

 private:
  const std::vector<std::unique_ptr<Normalizer>> steps_;
};

Made ReadReplace(JsonFields& fields) {
  TDOCK_ASSIGN_OR_RETURN(Regex pattern, ReadPattern(fields));
  TDOCK_ASSIGN_OR_RETURN(std::string content, fields.String("content"));
  return std::make_unique<Replace>(std::move(pattern), std::move(content));
}

Made ReadSequence(JsonFields& fields) {
  const Json& parts = fields.Get("normalizers");
  if (!parts.is_array()) return fields.Damaged("normalizers", "a list");
  std::vector<std::unique_ptr<Normalizer>> steps;
  for (const Json& part : parts) {
    TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> step, ReadNormalizer(part));
    if (step != nullptr) steps.push_back(std::move(step));
  }
  return std::make_unique<NormalizerSequence>(std::move(steps));
}

Made ReadOfType(const std::string& type, JsonFields& fields) {
  if (type == "NFC") return std::make_unique<UnicodeForm>(NormalForm::kNfc);
  if (type == "NFD") return std::make_unique<UnicodeForm>(NormalForm::kNfd);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(NormalForm::kNfkc);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(NormalForm::kNfkd);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "Replace") return ReadReplace(fields);
  if (type == "Sequence") return ReadSequence(fields);
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
  if (json.is_null()) return nullptr;
  JsonFields fields(json, "the normalizer");
  TDOCK_ASSIGN_OR_RETURN(const std::string type, fields.String("type"));
  JsonFields typed(json, absl::StrCat("the normalizer ", type));
  typed.Get("type");
  TDOCK_ASSIGN_OR_RETURN(std::unique_ptr<Normalizer> made, ReadOfType(type, typed));
  TDOCK_RETURN_IF_ERROR(typed.Finish());
  return made;
}

}  // namespace tdock::text
