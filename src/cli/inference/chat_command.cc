#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/inference/chat_console.h"
#include "cli/inference/chat_server.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/prompt_options.h"
#include "cli/sampling_options.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "engine/answer_stream.h"
#include "engine/engine.h"
#include "engine/model_folder.h"
#include "text/chat_template.h"
#include "text/dialogue.h"
#include "trainer/stages/guard.h"

namespace tdock::cli {
namespace {

struct ChatArguments {
  ServerChatArguments server;
  ModelArguments model;
  PromptArguments prompts;
  SamplingArguments sampling;
  bool raw = false;
};

// What is read before the first message.
struct ChatInputs {
  engine::ModelFolder model;
  text::ChatTemplate chat_template;
  engine::SamplingParams sampling;
  int64_t most_prompt_tokens;  // that leave room for an answer
};

absl::StatusOr<text::ChatTemplate> FindTemplate(const ChatArguments& arguments, const text::Tokenizer& tokenizer) {
  if (arguments.raw) return text::RawTemplate(tokenizer);
  absl::StatusOr<text::ChatTemplate> found = TemplateOf(arguments.prompts, arguments.model.model);
  if (!absl::IsNotFound(found.status()) || !arguments.prompts.data.chat_template.empty()) return found;
  return absl::NotFoundError(
      absl::StrCat(found.status().message(), " with --template, or give --raw to send text as it is"));
}

absl::StatusOr<ChatInputs> Gather(const ChatArguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(engine::SamplingParams sampling, ReadSampling(arguments.sampling));
  TDOCK_ASSIGN_OR_RETURN(engine::ModelFolder model, LoadModel(arguments.model));
  TDOCK_RETURN_IF_ERROR(engine::CheckSamplingParams(sampling, model.decoder.used_tokens(), model.end_tokens));
  TDOCK_ASSIGN_OR_RETURN(text::ChatTemplate chat_template, FindTemplate(arguments, *model.tokenizer));
  if (arguments.prompts.system) {  // which not every template has a place for
    const std::vector<text::Turn> turns = {{text::Role::kSystem, *arguments.prompts.system}, {text::Role::kUser, "Hi"}};
    const auto rendered = chat_template.Render(turns, {}, /*generation_prompt=*/true, SpellingsOf(*model.tokenizer));
    if (!rendered.ok()) return Annotate(rendered.status(), "--system");
  }
  const int64_t positions = model.decoder.config().context_length();
  if (sampling.max_new_tokens >= positions) {
    return absl::InvalidArgumentError(absl::StrCat("--max-new-tokens ", sampling.max_new_tokens,
                                                   " leaves no room for a message in the ", positions,
                                                   " positions of the model"));
  }
  const int64_t most = positions - sampling.max_new_tokens;
  return ChatInputs{std::move(model), std::move(chat_template), std::move(sampling), most};
}

class ChatSession {
 public:
  ChatSession(const ChatInputs& inputs, engine::Engine& engine, std::optional<std::string> system)
      : inputs_(inputs),
        tokenizer_(*inputs.model.tokenizer),
        engine_(engine),
        stops_(inputs.sampling.stop),
        dialogue_(inputs.chat_template, tokenizer_, std::move(system)) {}

  absl::Status Run() {
    return console_.Talk([this](const std::string& message) { return Round(message); }, [this] { dialogue_.Clear(); });
  }

 private:
  absl::Status Round(const std::string& message) {
    absl::StatusOr<text::DialoguePrompt> prompt = dialogue_.Ask(message, inputs_.most_prompt_tokens);
    if (!prompt.ok()) {
      std::cerr << "The message is left out: " << EscapeForTerminal(prompt.status().message());
      if (absl::IsOutOfRange(prompt.status())) {
        std::cerr << " of the model's " << inputs_.model.decoder.config().context_length() << " positions, with "
                  << inputs_.sampling.max_new_tokens << " for the answer (--max-new-tokens)";
      }
      std::cerr << "\n";
      return absl::OkStatus();
    }
    if (prompt->dropped_turns > 0) {
      std::cerr << "The conversation is too long for the model: its oldest " << prompt->dropped_turns
                << " turns are forgotten.\n";
    }
    if (!prompt->rewritten.empty() && !std::exchange(told_of_rewriting_, true)) {
      std::cerr << "Earlier answers are encoded again from their text: " << prompt->rewritten << ".\n";
    }
    TDOCK_ASSIGN_OR_RETURN(const engine::Completion completion, Generate(std::move(prompt->ids)));
    TDOCK_ASSIGN_OR_RETURN(std::vector<int32_t> said, engine::SaidTokens(completion, tokenizer_));
    if (said.empty() && completion.finish_reason == engine::FinishReason::kAborted) {
      dialogue_.Withdraw();
      return absl::OkStatus();
    }
    return dialogue_.Reply(std::move(said));
  }

  // Shows the answer as it is generated. SIGINT ends it.
  absl::StatusOr<engine::Completion> Generate(std::vector<int32_t> prompt) {
    engine::AnswerStream stream(tokenizer_, inputs_.model.end_tokens, stops_,
                                [this](absl::string_view text) { console_.Show(text); });
    absl::Status shown = absl::OkStatus();
    const InterruptCatcher interrupt;
    TDOCK_ASSIGN_OR_RETURN(const engine::RequestId id,
                           engine_.Add({.prompt = {std::move(prompt), 1, rounds_++},
                                        .sampling = inputs_.sampling,
                                        .on_token = [&](int64_t, const engine::NewToken& token) {
                                          shown.Update(stream.Push(token.token));
                                        }}));
    for (bool aborted = false;;) {
      if (interrupt.caught() && !std::exchange(aborted, true)) TDOCK_RETURN_IF_ERROR(engine_.Abort(id));
      std::vector<engine::Answer> answers = engine_.Step();
      TDOCK_RETURN_IF_ERROR(shown);
      if (answers.empty()) continue;
      TDOCK_RETURN_IF_ERROR(answers.front().status);
      stream.Finish(answers.front().completion.text_bytes);
      std::cout << std::endl;
      return std::move(answers.front().completion);
    }
  }

  const ChatInputs& inputs_;
  const text::Tokenizer& tokenizer_;
  engine::Engine& engine_;
  const engine::StopTexts stops_;
  text::Dialogue dialogue_;
  const ChatConsole console_;
  uint64_t rounds_ = 0;
  bool told_of_rewriting_ = false;
};

absl::Status RunChat(const CLI::App& command, const ChatArguments& arguments) {
  if (!arguments.server.url.empty()) {
    const auto sampling = GivenSampling(command, arguments.sampling);
    TDOCK_RETURN_IF_ERROR(Refused(sampling.status()));
    return ChatWithServer(arguments.server, arguments.model.model, arguments.prompts.system, *sampling);
  }
  if (arguments.model.model.empty()) {
    return Refused(absl::InvalidArgumentError("say who answers: --model FOLDER, or --server URL"));
  }
  const absl::StatusOr<ChatInputs> inputs = trainer::Guarded([&] { return Gather(arguments); });
  TDOCK_RETURN_IF_ERROR(Refused(inputs.status()));
  ServedModel served(arguments.model, inputs->model);
  return Failed(ChatSession(*inputs, served.engine(), arguments.prompts.system).Run());
}

}  // namespace

Command AddChat(CLI::App& app) {
  auto arguments = std::make_shared<ChatArguments>();
  arguments->model.max_rows = 1;
  CLI::App* command = AddSubcommand(app, "chat");
  AddModelOptions(*command, "--model,--path", arguments->model);
  command->get_option("--model")->required(false)->description(
      "Folder of the model, in the Hugging Face layout; with --server, a model's name there");
  CLI::Option* server = AddServerOptions(*command, arguments->server);
  AddTemplateOptions(*command, arguments->prompts);
  command
      ->add_flag("--raw", arguments->raw,
                 "Send messages and answers as they are, one after another, without any template")
      ->excludes("--template");
  // A server has loaded its model, and has its template.
  for (const char* option :
       {"--adapter", "--unmerged", "--dtype", "--int8", "--kernels", "--speculative-tokens", "--draft", "--device",
        "--threads", "--template", "--template-variables", "--template-date", "--raw"}) {
    server->excludes(command->get_option(option));
  }
  AddSamplingOptions(*command, arguments->sampling);
  return [arguments, command] { return RunChat(*command, *arguments); };
}

}  // namespace tdock::cli
