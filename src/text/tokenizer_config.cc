#include "text/tokenizer_config.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/json_fields.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;

constexpr char kFile[] = "tokenizer_config.json";

// A special token's name: text, or an object with "content".
absl::StatusOr<std::optional<std::string>> ReadName(JsonFields& fields, const char* key) {
  const Json& value = fields.Get(key);
  if (value.is_null()) return std::nullopt;
  const Json& content = value.is_object() && value.contains("content") ? value["content"] : value;
  if (!content.is_string()) return fields.Damaged(key, "text or an object with \"content\"");
  return content.get<std::string>();
}

}  // namespace

absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const Json& json) {
  TokenizerConfig config;
  if (json.is_null()) return config;
  JsonFields fields(json, kFile);
  TDOCK_ASSIGN_OR_RETURN(config.bos, ReadName(fields, "bos_token"));
  TDOCK_ASSIGN_OR_RETURN(config.eos, ReadName(fields, "eos_token"));
  TDOCK_ASSIGN_OR_RETURN(config.pad, ReadName(fields, "pad_token"));
  TDOCK_ASSIGN_OR_RETURN(config.add_bos, fields.BoolOr("add_bos_token", false));
  TDOCK_ASSIGN_OR_RETURN(config.add_eos, fields.BoolOr("add_eos_token", false));
  return config;
}

absl::StatusOr<NamedTokens> TokenizerConfig::Find(
    const std::function<std::optional<int32_t>(absl::string_view)>& token_id) const {
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
      return absl::InvalidArgumentError(
          absl::StrCat(kFile, ": \"", key, "\" is ", ShownJson(Json(*name)), ", which the tokenizer does not have"));
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
