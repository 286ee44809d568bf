#include "text/post_processor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "text/bpe.h"
#include "text/encode_budget.h"
#include "text/json_fields.h"
#include "text/unicode.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;

bool IsSpace(char32_t code) { return code == ByteLevelChar(' ') || IsWhiteSpace(code); }

// The offset of the character `count` behind the one at `begin`, but no further than `end`.
size_t Forward(absl::string_view text, size_t begin, size_t end, uint32_t count) {
  for (; count > 0 && begin < end; --count) begin += FirstUtf8Char(text.substr(begin))->bytes;
  return begin;
}

// The offset of the character `count` before `end`; nothing where there are fewer.
std::optional<size_t> Back(absl::string_view text, size_t end, uint32_t count) {
  for (; count > 0; --count) {
    if (end == 0) return std::nullopt;
    end -= LastUtf8Char(text.substr(0, end)).bytes;
  }
  return end;
}

void TrimSpaces(absl::string_view text, OuterSpaces spaces, bool is_first, bool add_prefix_space, TextRange& range) {
  // One space at the beginning of the text is the one that was added.
  if (is_first && add_prefix_space && spaces.leading == 1) spaces.leading = 0;
  range.begin = Forward(text, range.begin, range.end, spaces.leading);
  if (spaces.trailing == 0) return;
  if (const auto end = Back(text, range.end, spaces.trailing)) range.end = std::max(*end, range.begin);
}

}  // namespace

OuterSpaces CountOuterSpaces(absl::string_view token) {
  OuterSpaces spaces;
  absl::string_view rest = token;
  for (; !rest.empty() && IsSpace(FirstUtf8Char(rest)->code); ++spaces.leading) {
    rest.remove_prefix(FirstUtf8Char(rest)->bytes);
  }
  rest = token;
  for (; !rest.empty() && IsSpace(LastUtf8Char(rest).code); ++spaces.trailing) {
    rest.remove_suffix(LastUtf8Char(rest).bytes);
  }
  return spaces;
}

bool PostProcessor::trims() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& step) { return step.trim.has_value(); });
}

void PostProcessor::Apply(absl::string_view text, bool add_special_tokens, bool has_ranges,
                          std::vector<OuterSpaces> spaces, Encoding& encoding) const {
  for (const Step& step : steps_) {
    if (step.trim && has_ranges) {
      for (size_t i = 0; i < encoding.ids.size(); ++i) {
        const bool is_first = i == 0 || encoding.ranges[i].begin == 0;
        TrimSpaces(text, spaces[i], is_first, step.trim->add_prefix_space, encoding.ranges[i]);
      }
    }
    if (!add_special_tokens) continue;
    encoding.ids.insert(encoding.ids.begin(), step.before.begin(), step.before.end());
    encoding.ids.insert(encoding.ids.end(), step.behind.begin(), step.behind.end());
    if (!has_ranges) continue;
    encoding.ranges.insert(encoding.ranges.begin(), step.before.size(), TextRange{});
    encoding.ranges.insert(encoding.ranges.end(), step.behind.size(), TextRange{});
    if (spaces.empty()) continue;
    spaces.insert(spaces.begin(), step.before.size(), OuterSpaces{});
    spaces.insert(spaces.end(), step.behind.size(), OuterSpaces{});
  }
}

absl::Status PostProcessor::AppendIds(const Json& ids, const std::function<bool(int32_t)>& is_token,
                                      const std::string& where, std::vector<int32_t>& out) {
  if (!ids.is_array()) return absl::InvalidArgumentError(absl::StrCat(where, ": \"ids\" is missing or not a list"));
  for (const Json& id : ids) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX || !is_token(id.get<int32_t>())) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": ", ShownJson(id), " is not the id of a token"));
    }
    if (++added_ids_ > kMaxAddedIds) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": a text gets more than ", kMaxAddedIds, " tokens put around it, the limit"));
    }
    out.push_back(id.get<int32_t>());
  }
  return absl::OkStatus();
}

absl::Status PostProcessor::AddTemplate(JsonFields& fields, const std::function<bool(int32_t)>& is_token) {
  const Json& single = fields.Get("single");
  const Json& tokens = fields.Get("special_tokens");
  fields.Get("pair");
  if (!single.is_array()) return fields.Damaged("single", "a list");
  Step step;
  bool text_seen = false;
  for (const Json& part : single) {
    const bool one = part.is_object() && part.size() == 1 && part.begin().value().is_object();
    if (!one) return fields.Damaged("single", "a list of {\"Sequence\": …} and {\"SpecialToken\": …}");
    JsonFields inner(part.begin().value(), absl::StrCat(fields.where(), ": ", part.begin().key()));
    TDOCK_ASSIGN_OR_RETURN(const std::string id, inner.String("id"));
    TDOCK_RETURN_IF_ERROR(inner.Int("type_id").status());
    TDOCK_RETURN_IF_ERROR(inner.Finish());
    if (part.begin().key() == "Sequence") {
      if (id != "A" || text_seen) return fields.Unsupported("single", "it must hold the sequence A once");
      text_seen = true;
    } else if (part.begin().key() == "SpecialToken") {
      const bool known = tokens.is_object() && tokens.contains(id) && tokens[id].is_object();
      const Json ids = known ? tokens[id].value("ids", Json()) : Json();
      TDOCK_RETURN_IF_ERROR(AppendIds(ids, is_token,
                                      absl::StrCat(fields.where(), ": the special token ", ShownJson(Json(id))),
                                      text_seen ? step.behind : step.before));
    } else {
      return fields.Unsupported("single", "its parts must be of Sequence and SpecialToken");
    }
  }
  if (!text_seen) return fields.Unsupported("single", "it must hold the sequence A once");
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

// "cls" before and "sep" behind: each a list of a token and its id.
absl::Status PostProcessor::AddPair(JsonFields& fields, const std::function<bool(int32_t)>& is_token) {
  Step step;
  for (const char* key : {"cls", "sep"}) {
    const Json& token = fields.Get(key);
    if (!token.is_array() || token.size() != 2) return fields.Damaged(key, "a list of a token and its id");
    TDOCK_RETURN_IF_ERROR(AppendIds(Json::array({token[1]}), is_token, absl::StrCat(fields.where(), ": \"", key, "\""),
                                    key[0] == 'c' ? step.before : step.behind));
  }
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status PostProcessor::Add(const Json& json, const std::function<bool(int32_t)>& is_token) {
  if (++components_ > kMaxComponents) {
    return absl::InvalidArgumentError(
        absl::StrCat("the post-processor is a sequence of more than ", kMaxComponents, " components, the limit"));
  }
  JsonFields untyped(json, "the post-processor");
  TDOCK_ASSIGN_OR_RETURN(const std::string type, untyped.String("type"));
  JsonFields fields(json, absl::StrCat("the post-processor ", type));
  fields.Get("type");
  if (type == "Sequence") {
    const Json& parts = fields.Get("processors");
    if (!parts.is_array()) return fields.Damaged("processors", "a list");
    for (const Json& part : parts) TDOCK_RETURN_IF_ERROR(Add(part, is_token));
  } else if (type == "ByteLevel" || type == "RobertaProcessing") {
    TDOCK_ASSIGN_OR_RETURN(const bool trims, fields.Bool("trim_offsets"));
    TDOCK_ASSIGN_OR_RETURN(const bool add_prefix_space, fields.Bool("add_prefix_space"));
    if (trims) steps_.push_back({.trim = Trim{add_prefix_space}, .before = {}, .behind = {}});
    if (type == "ByteLevel") {
      TDOCK_RETURN_IF_ERROR(fields.BoolOr("use_regex", true).status());  // is for its other use, as a pre-tokenizer
    } else {
      TDOCK_RETURN_IF_ERROR(AddPair(fields, is_token));
    }
  } else if (type == "BertProcessing") {
    TDOCK_RETURN_IF_ERROR(AddPair(fields, is_token));
  } else if (type == "TemplateProcessing") {
    TDOCK_RETURN_IF_ERROR(AddTemplate(fields, is_token));
  } else {
    return fields.Unsupported("type",
                              "only BertProcessing, ByteLevel, RobertaProcessing, TemplateProcessing and Sequence are");
  }
  return fields.Finish();
}

absl::StatusOr<PostProcessor> PostProcessor::Read(const Json& json, const std::function<bool(int32_t)>& is_token) {
  PostProcessor made;
  if (!json.is_null()) TDOCK_RETURN_IF_ERROR(made.Add(json, is_token));
  return made;
}

}  // namespace tdock::text
