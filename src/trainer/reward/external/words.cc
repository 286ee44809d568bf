#include "trainer/reward/external/words.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/utf8.h"

namespace tdock::reward {

absl::StatusOr<std::vector<std::string>> SplitWords(absl::string_view line) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote == 0 && absl::ascii_isspace(static_cast<unsigned char>(c))) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == '\\' && quote != '\'') {
      if (i + 1 == line.size()) {
        return absl::InvalidArgumentError(absl::StrCat("the command ", Quoted(line), " ends with a lone \\"));
      }
      if (quote == '"' && !absl::StrContains("\"\\$`", line[i + 1])) words.back() += c;
      words.back() += line[++i];
    } else {
      words.back() += c;
    }
  }
  if (quote != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the command ", Quoted(line), " has a ", std::string(1, quote), " without its end"));
  }
  if (words.empty() || words[0].empty()) return absl::InvalidArgumentError("a command names no program");
  return words;
}

}  // namespace tdock::reward
