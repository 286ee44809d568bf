// The special tokens named in tokenizer_config.json and special_tokens_map.json. Internal to this module.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"
#include "core/base/json_text.h"

namespace tdock::text {

inline constexpr char kTokenizerConfig[] = "tokenizer_config.json";
inline constexpr char kSpecialTokensMap[] = "special_tokens_map.json";

struct NamedTokens {
  std::optional<int32_t> bos, eos, pad;
};

struct TokenizerConfig {
  std::optional<std::string> bos, eos, pad;
  bool add_bos = false;  // requested by "add_bos_token"
  bool add_eos = false;

  // A token that a file requires, and where it says so.
  struct Wanted {
    std::string content;
    std::optional<int64_t> id;
    std::string where;
  };
  std::vector<Wanted> wanted = {};

  // InvalidArgument if a named token is not one of the tokenizer's; Unimplemented if a required token would have to be
  // added to it.
  absl::StatusOr<NamedTokens> Find(const std::function<std::optional<int32_t>(absl::string_view)>& token_id) const;
};

// `config` is a tokenizer_config.json, `special` a special_tokens_map.json; null if there is no such file. As in
// `transformers`, the latter only supplements the former if that has "added_tokens_decoder", and otherwise takes
// precedence. Errors begin with the file's name.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const nlohmann::json& config, const nlohmann::json& special);

// The name and the contents of each file that Save() writes.
using SavedFiles = std::vector<std::pair<std::string, std::string>>;
absl::Status SaveFiles(Env& env, const std::string& folder, const SavedFiles& files);

}  // namespace tdock::text
