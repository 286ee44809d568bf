// tdock_conversation [MODEL]: each line of its input is a conversation as JSON,
//
//   {"template": "chatml", "messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true,
//    "tools": […], "documents": […], "variables": {…}, "now": 1764000000, "bos": "<s>", "eos": "</s>"}
//
// of which all but the template, or "jinja", its text, and the messages may be missing. Each line of its output is what
// it is rendered as: {"text": …}, with MODEL, a folder with a tokenizer, also "ids", "loss_mask", "turns" and
// "rewritten". A line may name another folder by "tokenizer". With "parts": true, "parts" has the same of each sample
// that data.train_on: each_reply makes of the conversation. Or the answer is {"error": …}.
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/env.h"
#include "core/base/status.h"
#include "text/conversation.h"
#include "text/turn_json.h"

namespace tdock::text {
namespace {

using Json = nlohmann::ordered_json;

std::string ListIn(const Json& asked, const char* name) {
  return asked.contains(name) && !asked[name].is_null() ? asked[name].dump() : "";
}

class Tool {
 public:
  absl::Status Load(const std::string& folder) { return Tokenizers(folder).status(); }

  absl::StatusOr<Json> Answer(const Json& asked, const std::string& model) {
    absl::StatusOr<ChatTemplate> form = asked.contains("jinja")
                                            ? ChatTemplate::Parse(asked["jinja"].get<std::string>())
                                            : ChatTemplate::Named(asked.at("template").get<std::string>());
    if (!form.ok()) return form.status();
    Json variables = Json::object();
    const Json given = asked.value("variables", Json::object());
    for (const auto& [name, value] : given.items()) {
      if (form->Uses(name)) variables[name] = value;  // transformers has no objection to others
    }
    TDOCK_ASSIGN_OR_RETURN(form, form->WithVariables(variables.dump()));
    const int64_t now = asked.value("now", int64_t{0});
    const ChatTemplate chat_template = form->WithTime(absl::FromUnixSeconds(now), absl::UTCTimeZone());
    TDOCK_ASSIGN_OR_RETURN(const std::vector<Turn> turns, ReadTurns(asked.at("messages")));
    const Context context{.tools = ListIn(asked, "tools"), .documents = ListIn(asked, "documents")};
    const bool generation_prompt = asked.contains("add_generation_prompt") && asked["add_generation_prompt"] == true;
    const std::string folder = asked.value("tokenizer", model);
    if (folder.empty()) {
      TDOCK_ASSIGN_OR_RETURN(const ChatTemplate::Rendered rendered,
                             chat_template.Render(turns, context, generation_prompt,
                                                  {.bos = Spelling(asked, "bos"), .eos = Spelling(asked, "eos")}));
      return Json{{"text", rendered.text}};
    }
    TDOCK_ASSIGN_OR_RETURN(const Tokenizer* const tokenizer, Tokenizers(folder));
    TDOCK_ASSIGN_OR_RETURN(const EncodedConversation encoded,
                           EncodeConversation(chat_template, *tokenizer, turns,
                                              {.generation_prompt = generation_prompt, .context = context}));
    Json answer = JsonOf(encoded);
    if (asked.value("parts", false)) {
      TDOCK_ASSIGN_OR_RETURN(answer["parts"], PartsOf(chat_template, *tokenizer, turns, context));
    }
    return answer;
  }

 private:
  static Json JsonOf(const EncodedConversation& encoded) {
    std::vector<int32_t> rewritten;
    for (const auto& of : encoded.rewritten) rewritten.push_back(of.turn);
    return Json{{"text", encoded.text},
                {"ids", encoded.ids},
                {"loss_mask", encoded.loss_mask},
                {"turns", encoded.turns},
                {"before_last_reply", encoded.before_last_reply},
                {"parted", encoded.parted},
                {"rewritten", rewritten}};
  }

  static absl::StatusOr<Json> PartsOf(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                      const std::vector<Turn>& turns, const Context& context) {
    EncodeTurns options{.train_on = TrainOn::kEachReply, .context = context};
    TDOCK_ASSIGN_OR_RETURN(const TrainedParts all, PartsToTrain(chat_template, tokenizer, turns, options));
    Json parts = Json::array();
    for (const TrainedPart& part : all.parts) {
      options.counted = part.counted;
      TDOCK_ASSIGN_OR_RETURN(const EncodedConversation encoded,
                             EncodeConversation(chat_template, tokenizer, std::span(turns).first(part.turns), options));
      parts.push_back(JsonOf(encoded));
    }
    return parts;
  }

  static std::optional<std::string> Spelling(const Json& asked, const char* name) {
    return asked.contains(name) ? std::optional(asked[name].get<std::string>()) : std::nullopt;
  }

  absl::StatusOr<const Tokenizer*> Tokenizers(const std::string& folder) {
    std::unique_ptr<Tokenizer>& loaded = tokenizers_[folder];
    if (loaded == nullptr) {
      TDOCK_ASSIGN_OR_RETURN(loaded, LoadTokenizer(Env::Real(), folder));
    }
    return loaded.get();
  }

  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers_;
};

int Main(int argc, char** argv) {
  Tool tool;
  const std::string model = argc > 1 ? argv[1] : "";
  if (const absl::Status loaded = model.empty() ? absl::OkStatus() : tool.Load(model); !loaded.ok()) {
    std::cerr << loaded << "\n";
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const absl::StatusOr<Json> answer = tool.Answer(Json::parse(line), model);
    std::cout << (answer.ok() ? *answer : Json{{"error", std::string(answer.status().message())}}).dump() << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace tdock::text

int main(int argc, char** argv) { return tdock::text::Main(argc, argv); }
