// What is taken from a tokenizer_config.json: the names of special tokens. Internal to this module.
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
#include "base/env.h"
#include "nlohmann/json.hpp"

namespace tdock::text {

struct NamedTokens {
  std::optional<int32_t> bos, eos, pad;
};

struct TokenizerConfig {
  std::optional<std::string> bos, eos, pad;
  bool add_bos = false;  // asked for by "add_bos_token"
  bool add_eos = false;

  // InvalidArgument where a token that is named is not one of the tokenizer's.
  absl::StatusOr<NamedTokens> Find(const std::function<std::optional<int32_t>(absl::string_view)>& token_id) const;
};

// `json` is null where there is no such file. Errors begin with the file's name.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const nlohmann::json& json);

// The name and the contents of each file that Save() writes.
using SavedFiles = std::vector<std::pair<std::string, std::string>>;
absl::Status SaveFiles(Env& env, const std::string& folder, const SavedFiles& files);

}  // namespace tdock::text
