// The files of a tokenizer in the Hugging Face layout, as text. Internal to this module.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/char_tokenizer.h"

namespace tdock::text {

struct TokenizerParts {
  std::vector<CharTokenizer::Token> tokens;  // by id
  int32_t eos_id = 0;
  int32_t pad_id = 0;
  std::optional<int64_t> max_length;
};

struct TokenizerFiles {
  std::string tokenizer;
  std::string tokenizer_config;
  std::string special_tokens_map;
};

TokenizerFiles WriteTokenizerFiles(const TokenizerParts& parts);

// Errors as LoadTokenizer() gives them; each begins with the name of the file.
absl::StatusOr<TokenizerParts> ReadTokenizerFiles(absl::string_view tokenizer, absl::string_view tokenizer_config);

}  // namespace tdock::text
