#include "text/tokenizer_config.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "text/json_fields.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;

using Wanted = TokenizerConfig::Wanted;

// A special token's name: text, or an object with "content".
std::optional<std::string> NameIn(const Json& value) {
  const Json& content = value.is_object() && value.contains("content") ? value["content"] : value;
  return content.is_string() ? std::optional(content.get<std::string>()) : std::nullopt;
}

absl::StatusOr<std::optional<std::string>> ReadName(JsonFields& fields, const char* key) {
  const Json& value = fields.Get(key);
  if (value.is_null()) return std::nullopt;
  std::optional<std::string> name = NameIn(value);
  if (!name) return fields.Damaged(key, "text or an object with \"content\"");
  return name;
}

std::string Place(const char* file, const char* key) { return absl::StrCat(file, ": \"", key, "\""); }

absl::Status ReadAddedTokensDecoder(JsonFields& fields, std::vector<Wanted>& wanted) {
  constexpr char kKey[] = "added_tokens_decoder";
  const Json& json = fields.Get(kKey);
  if (json.is_null()) return absl::OkStatus();
  if (!json.is_object()) return fields.Damaged(kKey, "an object");
  for (const auto& [key, value] : json.items()) {
    const std::optional<std::string> name = NameIn(value);
    int64_t id = 0;
    if (!name || !absl::SimpleAtoi(key, &id)) return fields.Damaged(kKey, "an object of tokens by their ids");
    wanted.push_back({.content = *name, .id = id, .where = Place(kTokenizerConfig, kKey)});
  }
  return absl::OkStatus();
}

// What a file names besides the tokens that begin, end and fill a text.
absl::Status ReadOthers(JsonFields& fields, const char* file, std::vector<Wanted>& wanted) {
  for (const char* key : {"unk_token", "sep_token", "cls_token", "mask_token"}) {
    TDOCK_ASSIGN_OR_RETURN(const std::optional<std::string> name, ReadName(fields, key));
    if (name) wanted.push_back({.content = *name, .id = std::nullopt, .where = Place(file, key)});
  }
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const Json& json = fields.Get(key);
    if (!json.is_null() && !json.is_structured()) return fields.Damaged(key, "a list or an object of tokens");
    for (const Json& value : json) {
      const std::optional<std::string> name = NameIn(value);
      if (!name) return fields.Damaged(key, "a list or an object of tokens");
      wanted.push_back({.content = *name, .id = std::nullopt, .where = Place(file, key)});
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const Json& json, const Json& special) {
  TokenizerConfig config;
  JsonFields fields(json, kTokenizerConfig), map(special, kSpecialTokensMap);
  const bool map_is_first = fields.Get("added_tokens_decoder").is_null();
  const std::pair<const char*, std::optional<std::string>&> names[] = {
      {"bos_token", config.bos}, {"eos_token", config.eos}, {"pad_token", config.pad}};
  for (const auto& [key, name] : names) {
    TDOCK_ASSIGN_OR_RETURN(name, ReadName(fields, key));
    TDOCK_ASSIGN_OR_RETURN(std::optional<std::string> mapped, ReadName(map, key));
    if (!mapped || (name && !map_is_first)) continue;
    config.wanted.push_back({.content = *mapped, .id = std::nullopt, .where = Place(kSpecialTokensMap, key)});
    name = std::move(mapped);
  }
  TDOCK_ASSIGN_OR_RETURN(config.add_bos, fields.BoolOr("add_bos_token", false));
  TDOCK_ASSIGN_OR_RETURN(config.add_eos, fields.BoolOr("add_eos_token", false));
  TDOCK_RETURN_IF_ERROR(ReadAddedTokensDecoder(fields, config.wanted));
  TDOCK_RETURN_IF_ERROR(ReadOthers(fields, kTokenizerConfig, config.wanted));
  if (map_is_first) TDOCK_RETURN_IF_ERROR(ReadOthers(map, kSpecialTokensMap, config.wanted));
  return config;
}

absl::StatusOr<NamedTokens> TokenizerConfig::Find(
    const std::function<std::optional<int32_t>(absl::string_view)>& token_id) const {
  for (const Wanted& token : wanted) {
    const std::optional<int32_t> id = token_id(token.content);
    if (id && *id == token.id.value_or(*id)) continue;
    return absl::UnimplementedError(absl::StrCat(
        token.where, " names the token ", ShownJson(Json(token.content)),
        token.id ? absl::StrCat(" with the id ", *token.id) : std::string(), ", which the tokenizer ",
        id ? absl::StrCat("has with the id ", *id) : std::string("does not have"), "; adding it is not supported"));
  }
  NamedTokens found;
  const struct {
    const char* key;
    const std::optional<std::string>& name;
    std::optional<int32_t>& id;
  } tokens[] = {{"bos_token", bos, found.bos}, {"eos_token", eos, found.eos}, {"pad_token", pad, found.pad}};
  for (const auto& [key, name, id] : tokens) {
    if (!name) continue;
    id = token_id(*name);
    if (!id) {
      return absl::InvalidArgumentError(absl::StrCat(kTokenizerConfig, ": \"", key, "\" is ", ShownJson(Json(*name)),
                                                     ", which the tokenizer does not have"));
    }
  }
  return found;
}

absl::Status SaveFiles(Env& env, const std::string& folder, const SavedFiles& files) {
  TDOCK_RETURN_IF_ERROR(env.CreateFolders(folder));
  for (const auto& [name, contents] : files) {
    TDOCK_RETURN_IF_ERROR(WriteFileAtomically(env, JoinPath(folder, name), contents));
  }
  return absl::OkStatus();
}

}  // namespace tdock::text
