#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "nlohmann/json.hpp"
#include "text/tokenizer.h"

namespace tdock::cli {
namespace {

struct TokenizeArguments {
  std::string model;
  bool decode = false;
  bool add_special_tokens = false;
  std::string spelled = "refuse";
  bool skip_special_tokens = false;
};

text::EncodeOptions Options(const TokenizeArguments& arguments) {
  using text::SpelledSpecial;
  return {.spelled = arguments.spelled == "parse"  ? SpelledSpecial::kParse
                     : arguments.spelled == "text" ? SpelledSpecial::kAsText
                                                   : SpelledSpecial::kRefuse,
          .add_special_tokens = arguments.add_special_tokens};
}

absl::StatusOr<std::vector<int32_t>> ParseIds(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto fits = [](const nlohmann::json& id) { return id.is_number_integer() && id >= 0 && id <= INT32_MAX; };
  if (!json.is_array() || !std::all_of(json.begin(), json.end(), fits)) {
    return absl::InvalidArgumentError("it is not a JSON list of token ids, such as [1, 2]");
  }
  return json.get<std::vector<int32_t>>();
}

absl::StatusOr<std::string> Answer(const text::Tokenizer& tokenizer, const TokenizeArguments& arguments,
                                   const std::string& line) {
  if (!arguments.decode) {
    TDOCK_ASSIGN_OR_RETURN(const auto ids, tokenizer.Encode(line, Options(arguments)));
    return absl::StrCat("[", absl::StrJoin(ids, ", "), "]");
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseIds(line));
  return tokenizer.Decode(ids, arguments.skip_special_tokens ? text::SpecialTokens::kSkip : text::SpecialTokens::kKeep);
}

absl::Status Tokenize(const TokenizeArguments& arguments) {
  const auto tokenizer = text::LoadTokenizer(Env::Real(), arguments.model);
  TDOCK_RETURN_IF_ERROR(Refused(tokenizer.status()));
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    const absl::StatusOr<std::string> answer = Answer(**tokenizer, arguments, line);
    if (!answer.ok()) return Failed(Annotate(answer.status(), absl::StrCat("line ", number)));
    std::cout << *answer << "\n";
  }
  if (std::cin.bad()) return Failed(absl::DataLossError("cannot read standard input"));
  return absl::OkStatus();
}

}  // namespace

Command AddTokenize(CLI::App& app) {
  auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* command = app.add_subcommand(
      "tokenize", "Turns each line of standard input into a JSON list of token ids, or back with --decode.");
  command->add_option("--model", arguments->model, "Folder with tokenizer.json or tokenizer.model")->required();
  CLI::Option* decode = command->add_flag("--decode", arguments->decode, "Turn lists of ids into text");
  command
      ->add_flag("--add-special-tokens", arguments->add_special_tokens,
                 "Add the special tokens that the model's files ask for, such as a beginning-of-text token")
      ->excludes(decode);
  command
      ->add_option("--spelled-special", arguments->spelled,
                   "If a line spells a special token: refuse it, parse it as the token, or treat it as text")
      ->check(CLI::IsMember({"refuse", "parse", "text"}))
      ->capture_default_str()
      ->excludes(decode);
  command->add_flag("--skip-special-tokens", arguments->skip_special_tokens, "Leave special tokens out of the text")
      ->needs(decode);
  return [arguments] { return Tokenize(*arguments); };
}

}  // namespace tdock::cli
