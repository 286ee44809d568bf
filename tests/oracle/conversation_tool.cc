// tdock_conversation [MODEL]: each line of its input is a conversation as JSON,
//
//   {"template": "chatml", "turns": [["user", "Hi"]], "generation_prompt": true, "bos": "<s>", "eos": "</s>"}
//
// and each line of its output what it is rendered as: {"text": …}, with MODEL, a folder with a tokenizer, also "ids"
// and "loss_mask". Or the line is {"jinja": …}, the text of a chat template, and is answered with {"template": …}, its
// name. Or the answer is {"error": …}.
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/env.h"
#include "text/conversation.h"

namespace tdock::text {
namespace {

using Json = nlohmann::json;

std::vector<Turn> TurnsOf(const Json& conversation) {
  const std::map<std::string, Role> roles = {{"system", Role::kSystem},       {"user", Role::kUser},
                                             {"assistant", Role::kAssistant}, {"developer", Role::kDeveloper},
                                             {"tool", Role::kTool},           {"function", Role::kFunction}};
  std::vector<Turn> turns;
  for (const Json& turn : conversation.at("turns")) turns.push_back({roles.at(turn[0]), turn[1]});
  return turns;
}

absl::StatusOr<Json> Recognised(const std::string& jinja) {
  const auto form = ChatTemplate::Recognise(jinja);
  if (!form.ok()) return form.status();
  return Json{{"template", std::string(form->name())}};
}

absl::StatusOr<Json> Rendered(const Json& conversation, const Tokenizer* tokenizer) {
  const std::vector<Turn> turns = TurnsOf(conversation);
  const bool generation_prompt = conversation.at("generation_prompt");
  const auto form = ChatTemplate::Named(conversation.at("template").get<std::string>());
  if (!form.ok()) return form.status();
  const auto pieces = form->Render(turns, generation_prompt);
  if (!pieces.ok()) return pieces.status();
  if (tokenizer == nullptr) {
    return Json{{"text", RenderedText(*pieces, conversation.at("bos").get<std::string>(),
                                      conversation.at("eos").get<std::string>())}};
  }
  const auto encoded = EncodeConversation(*form, *tokenizer, turns, generation_prompt);
  if (!encoded.ok()) return encoded.status();
  return Json{{"ids", encoded->ids}, {"loss_mask", encoded->loss_mask}};
}

int Main(int argc, char** argv) {
  std::unique_ptr<Tokenizer> tokenizer;
  if (argc > 1) {
    auto loaded = LoadTokenizer(Env::Real(), argv[1]);
    if (!loaded.ok()) {
      std::cerr << loaded.status() << "\n";
      return 1;
    }
    tokenizer = *std::move(loaded);
  }
  for (std::string line; std::getline(std::cin, line);) {
    const Json asked = Json::parse(line);
    const absl::StatusOr<Json> answer =
        asked.contains("jinja") ? Recognised(asked["jinja"].get<std::string>()) : Rendered(asked, tokenizer.get());
    std::cout << (answer.ok() ? *answer : Json{{"error", std::string(answer.status().message())}}).dump() << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace tdock::text

int main(int argc, char** argv) { return tdock::text::Main(argc, argv); }
