#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands.h"
#include "cli/json_line.h"
#include "cli/printable.h"
#include "core/base/env.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "data/data_config.h"
#include "data/value_text.h"
#include "text/conversation.h"
#include "text/tokenizer.h"
#include "text/turn_json.h"

namespace tdock::cli {
namespace {

struct TokenizeArguments {
  std::string model;
  bool decode = false;
  bool add_special_tokens = false;
  std::string spelled = "refuse";
  bool skip_special_tokens = false;
  bool chat = false;
  bool json = false;
  data::DataConfig data;  // the template, and what the loss counts
};

struct Chat {
  std::vector<text::Turn> turns;
  text::Context context;
  bool generation_prompt = false;
};

// A list of turns, or an object with them and what belongs to them.
absl::StatusOr<Chat> ParseChat(const std::string& line) {
  TDOCK_ASSIGN_OR_RETURN(nlohmann::ordered_json json, ParseJsonLine(line));
  if (json.is_array()) {
    auto object = nlohmann::ordered_json::object();
    object["messages"] = std::move(json);
    json = std::move(object);
  }
  if (!json.is_object() || !json.contains("messages")) {
    return absl::InvalidArgumentError(
        R"(it is no conversation in JSON, such as [{"role": "user", "content": "Hi"}] or {"messages": […], "tools": […]})");
  }
  Chat chat;
  for (const auto& [name, value] : json.items()) {
    if (name == "messages") {
      absl::StatusOr<std::vector<text::Turn>> turns = text::ReadTurns(value);
      if (!turns.ok()) return Annotate(turns.status(), "\"messages\"");
      chat.turns = *std::move(turns);
    } else if (name == "add_generation_prompt" && value.is_boolean()) {
      chat.generation_prompt = value.get<bool>();
    } else if ((name == "tools" || name == "documents") && value.is_array()) {
      TDOCK_ASSIGN_OR_RETURN((name == "tools" ? chat.context.tools : chat.context.documents),
                             data::JsonOfValue(CellOf(value)));
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", EscapeForMessage(name),
          "\" is not one of messages, tools, documents (lists) and add_generation_prompt (true or false)"));
    }
  }
  return chat;
}

// What the loss counts stands between ⟦ and ⟧, and what is not to be printed is escaped.
std::string WithMarks(const text::EncodedConversation& encoded, const text::Tokenizer& tokenizer) {
  std::string shown;
  std::vector<int32_t> run;
  const auto end_run = [&] {
    shown += Printable(tokenizer.Decode(run, text::SpecialTokens::kKeep).value_or(""));
    run.clear();
  };
  bool counted = false;
  for (size_t i = 0; i < encoded.ids.size(); ++i) {
    if ((encoded.loss_mask[i] != 0) != counted) {
      end_run();
      counted = !counted;
      shown += counted ? "⟦" : "⟧";
    }
    run.push_back(encoded.ids[i]);
  }
  end_run();
  if (counted) shown += "⟧";
  using How = text::EncodedConversation::Rewritten::How;
  for (const text::EncodedConversation::Rewritten& rewritten : encoded.rewritten) {
    absl::StrAppend(&shown, shown.ends_with('\n') ? "" : "\n", "(turn ", rewritten.turn + 1,
                    rewritten.how == How::kLater
                        ? " reads otherwise here than when it was the last: the loss does not count it)"
                    : rewritten.how == How::kEnd
                        ? " ends otherwise here than when it was the last: the loss does not count that end)"
                        : " does not stand behind the prompt that asks for it: the loss counts it from "
                          "where they part)");
  }
  return shown;
}

std::vector<int32_t> RewrittenTurns(const text::EncodedConversation& encoded) {
  std::vector<int32_t> turns;
  for (const auto& rewritten : encoded.rewritten) turns.push_back(rewritten.turn);
  return turns;
}

nlohmann::ordered_json JsonOf(const text::EncodedConversation& encoded) {
  return {{"text", encoded.text},
          {"ids", encoded.ids},
          {"loss_mask", encoded.loss_mask},
          {"turns", encoded.turns},
          {"rewritten", RewrittenTurns(encoded)}};
}

// The conversation as a whole, then the samples that a run makes of its first turns, see text::PartsToTrain().
absl::StatusOr<std::vector<text::EncodedConversation>> SamplesOf(const text::ChatTemplate& chat_template,
                                                                 const text::Tokenizer& tokenizer, const Chat& chat,
                                                                 text::TrainOn train_on) {
  text::EncodeTurns options{.generation_prompt = chat.generation_prompt, .train_on = train_on, .context = chat.context};
  std::vector<text::EncodedConversation> samples(1);
  TDOCK_ASSIGN_OR_RETURN(samples[0], text::EncodeConversation(chat_template, tokenizer, chat.turns, options));
  if (train_on != text::TrainOn::kEachReply || samples[0].uncounted.empty()) return samples;
  TDOCK_ASSIGN_OR_RETURN(const text::TrainedParts all,
                         text::PartsToTrain(chat_template, tokenizer, chat.turns, options));
  options.generation_prompt = false;
  for (const text::TrainedPart& part : all.parts) {
    if (part.turns == chat.turns.size()) continue;
    options.counted = part.counted;
    TDOCK_ASSIGN_OR_RETURN(
        samples.emplace_back(),
        text::EncodeConversation(chat_template, tokenizer, std::span(chat.turns).first(part.turns), options));
  }
  return samples;
}

absl::StatusOr<std::string> ChatAnswer(const text::ChatTemplate& chat_template, const text::Tokenizer& tokenizer,
                                       const TokenizeArguments& arguments, const std::string& line) {
  TDOCK_ASSIGN_OR_RETURN(const Chat chat, ParseChat(line));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<text::EncodedConversation> samples,
                         SamplesOf(chat_template, tokenizer, chat, arguments.data.train_on));
  if (!arguments.json) {
    std::string shown;
    for (size_t i = 0; i < samples.size(); ++i) {
      if (i > 0) absl::StrAppend(&shown, shown.ends_with('\n') ? "" : "\n", "(another sample)\n");
      shown += WithMarks(samples[i], tokenizer);
    }
    return shown;
  }
  nlohmann::ordered_json json = JsonOf(samples[0]);
  for (size_t i = 1; i < samples.size(); ++i) json["more"].push_back(JsonOf(samples[i]));
  return JsonText(json);
}

text::EncodeOptions Options(const TokenizeArguments& arguments) {
  using text::SpelledSpecial;
  return {.spelled = arguments.spelled == "parse"  ? SpelledSpecial::kParse
                     : arguments.spelled == "text" ? SpelledSpecial::kAsText
                                                   : SpelledSpecial::kRefuse,
          .add_special_tokens = arguments.add_special_tokens};
}

absl::StatusOr<std::vector<int32_t>> ParseIds(const std::string& line) {
  const nlohmann::json json = ReadJson(line);
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
  std::optional<text::ChatTemplate> chat_template;
  if (arguments.chat) {
    absl::StatusOr<text::ChatTemplate> found = data::ResolveTemplate(Env::Real(), arguments.data, arguments.model);
    TDOCK_RETURN_IF_ERROR(Refused(found.status()));
    chat_template = *std::move(found);
  }
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    const absl::StatusOr<std::string> answer =
        chat_template ? ChatAnswer(*chat_template, **tokenizer, arguments, line) : Answer(**tokenizer, arguments, line);
    if (!answer.ok()) return Failed(Annotate(answer.status(), absl::StrCat("line ", number)));
    const std::string shown = arguments.json ? PrintableJson(*answer) : Printable(*answer);
    std::cout << (terminal ? shown : *answer) << "\n";
  }
  if (std::cin.bad()) return Failed(absl::DataLossError("cannot read standard input"));
  return absl::OkStatus();
}

}  // namespace

Command AddTokenize(CLI::App& app) {
  auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* command = AddSubcommand(app, "tokenize");
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
  CLI::Option* chat =
      command
          ->add_flag(
              "--chat", arguments->chat,
              "Lines are conversations in JSON, [{\"role\": \"user\", \"content\": \"Hi\"}] or {\"messages\": […], "
              "\"tools\": […], \"documents\": […], \"add_generation_prompt\": true}; show each as the template "
              "renders it, with what the loss counts between ⟦ and ⟧")
          ->excludes(decode);
  command->add_flag("--json", arguments->json, "Show text, ids, loss_mask, and the turn of each token as JSON")
      ->needs(chat);
  command
      ->add_option("--template", arguments->data.chat_template,
                   absl::StrCat("Template: ", absl::StrJoin(text::ChatTemplate::Names(), ", "), " (the model's own)"))
      ->needs(chat);
  command
      ->add_option("--template-variables", arguments->data.template_variables,
                   "More variables of the template, as a JSON object")
      ->needs(chat);
  command->add_option("--template-date", arguments->data.template_date, "The day that the template shows (today)")
      ->needs(chat);
  command
      ->add_option("--train-on", arguments->data.train_on,
                   "What the loss counts: each_reply, replies, last_reply, everything")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, text::TrainOn>{{"each_reply", text::TrainOn::kEachReply},
                                                                       {"replies", text::TrainOn::kReplies},
                                                                       {"last_reply", text::TrainOn::kLastReply},
                                                                       {"everything", text::TrainOn::kEverything}}))
      ->needs(chat);
  return [arguments] { return Tokenize(*arguments); };
}

}  // namespace tdock::cli
