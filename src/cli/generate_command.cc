#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/answer_json.h"
#include "cli/commands.h"
#include "cli/generate_file.h"
#include "cli/model_options.h"
#include "cli/printable.h"
#include "cli/prompt_options.h"
#include "cli/sampling_options.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "engine/engine.h"
#include "engine/model_folder.h"
#include "text/tokenizer.h"
#include "trainer/stages/guard.h"

namespace tdock::cli {
namespace {

struct GenerateArguments {
  ModelArguments model;
  std::vector<std::string> texts;
  PromptArguments prompts;
  FileArguments files;
  SamplingArguments sampling;
  int64_t samples = 1;
  bool json = false;
  std::vector<const CLI::Option*> of_answers = {};  // options about answers that are generated
};

// The inputs that a call reads before it answers anything.
struct Inputs {
  engine::ModelFolder model;
  engine::SamplingParams sampling;
  std::vector<engine::Prompt> prompts;
};

// Tells who expects a special token that what spells one is text. Returns whether there was anything to tell.
bool NoteSpelledTokens(const std::string& text, const text::Tokenizer& tokenizer) {
  const auto parsed = tokenizer.Encode(text, {.spelled = text::SpelledSpecial::kParse});
  if (!parsed.ok()) return false;
  const auto special =
      std::find_if(parsed->begin(), parsed->end(), [&](int32_t id) { return tokenizer.IsSpecial(id); });
  if (special == parsed->end()) return false;
  std::cerr << "The prompt " << Quoted(text) << " spells the special token "
            << Quoted(tokenizer.IdToToken(*special).value_or("")) << "; it is text here. With --chat, the model's "
            << "template puts special tokens where they belong.\n";
  return true;
}

absl::StatusOr<Inputs> Gather(const GenerateArguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(engine::SamplingParams sampling, ReadSampling(arguments.sampling));
  if (arguments.files.score) sampling.max_new_tokens = 0;
  TDOCK_ASSIGN_OR_RETURN(engine::ModelFolder model, LoadModel(arguments.model));
  TDOCK_RETURN_IF_ERROR(engine::CheckSamplingParams(sampling, model.decoder.used_tokens(), model.end_tokens,
                                                    /*least_new_tokens=*/arguments.files.score ? 0 : 1));
  std::vector<engine::Prompt> prompts;
  if (!arguments.texts.empty()) {
    TDOCK_ASSIGN_OR_RETURN(const PromptEncoder encoder,
                           PromptEncoder::Create(arguments.prompts, arguments.model.model, *model.tokenizer));
    bool noted = arguments.prompts.chat;  // in what a user says, nobody expects one
    for (const std::string& text : arguments.texts) {
      absl::StatusOr<std::vector<int32_t>> tokens = encoder.Encode(text);
      if (!tokens.ok()) return Annotate(tokens.status(), absl::StrCat("prompt ", Quoted(text)));
      if (!noted) noted = NoteSpelledTokens(text, *model.tokenizer);
      prompts.push_back({*std::move(tokens), arguments.samples});
    }
  }
  return Inputs{std::move(model), std::move(sampling), std::move(prompts)};
}

absl::Status AnswerPrompts(const GenerateArguments& arguments, const Inputs& inputs, engine::Engine& engine) {
  const text::Tokenizer& tokenizer = *inputs.model.tokenizer;
  TDOCK_ASSIGN_OR_RETURN(const auto completions, engine.Generate(inputs.prompts, inputs.sampling));
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  for (size_t i = 0; i < completions.size(); ++i) {
    const auto samples = static_cast<size_t>(arguments.samples);
    if (arguments.json) {
      nlohmann::ordered_json json = {{"prompt", arguments.texts[i / samples]}, {"sample", i % samples}};
      TDOCK_RETURN_IF_ERROR(AddAnswer(completions[i], tokenizer, json));
      std::cout << (terminal ? PrintableJson(LineOf(json)) : LineOf(json)) << "\n";
    } else {
      TDOCK_ASSIGN_OR_RETURN(const std::string text, engine::TextOf(completions[i], tokenizer));
      std::cout << (terminal ? Printable(text) : text) << "\n";
    }
  }
  return absl::OkStatus();
}

absl::Status Generate(const GenerateArguments& arguments) {
  const absl::StatusOr<Inputs> inputs = trainer::Guarded([&] { return Gather(arguments); });
  TDOCK_RETURN_IF_ERROR(Refused(inputs.status()));
  ServedModel served(arguments.model, inputs->model);
  if (arguments.files.input.empty()) return AnswerPrompts(arguments, *inputs, served.engine());
  return GenerateFile({.arguments = arguments.files,
                       .prompts = arguments.prompts,
                       .folder = arguments.model.model,
                       .model = inputs->model,
                       .sampling = inputs->sampling,
                       .samples = arguments.samples,
                       .max_rows = arguments.model.max_rows,
                       .cache_bytes = arguments.model.cache_mib << 20,
                       .int8 = arguments.model.int8},
                      served.engine());
}

// What the parser cannot express.
void CheckTogether(const GenerateArguments& arguments) {
  const bool to_file = !arguments.files.output.empty();
  if (arguments.texts.empty() == arguments.files.input.empty()) {
    throw CLI::ValidationError("give either --prompt, once or more, or --input and --output");
  }
  const absl::string_view of_template = GivenTemplateOption(arguments.prompts);
  if (!of_template.empty() && !arguments.prompts.chat && !to_file) {
    throw CLI::ValidationError(absl::StrCat(of_template, " needs --chat: without it, a prompt is text as it stands"));
  }
  if (arguments.files.score) {
    for (const CLI::Option* option : arguments.of_answers) {
      if (option->count() == 0) continue;
      throw CLI::ValidationError(
          absl::StrCat(option->get_name(), " is about answers that are generated, and --score generates none"));
    }
  }
  const engine::SamplingParams& params = arguments.sampling.params;
  const bool shows = arguments.json || to_file;
  if (!shows && params.top_log_probs != 0) throw CLI::ValidationError("--top-log-probs needs --json or --output");
  if (!shows && params.filtered_log_probs) {
    throw CLI::ValidationError("--filtered-log-probs needs --json or --output");
  }
}

}  // namespace

Command AddGenerate(CLI::App& app) {
  auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = AddSubcommand(app, "generate");
  AddModelOptions(*command, "--model", arguments->model);
  AddBatchOptions(*command, arguments->model);
  command
      ->add_option("--prompt", arguments->texts,
                   "Prompt to answer, as it stands: special tokens that it spells are text like any other; may be "
                   "given more than once")
      ->allow_extra_args(false);
  arguments->of_answers.push_back(command->add_option("--samples", arguments->samples, "Number of answers per prompt")
                                      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
                                      ->capture_default_str());
  AddFileOptions(*command, arguments->files);
  command
      ->add_flag("--chat", arguments->prompts.chat,
                 "A prompt is what a user says: the model's template makes the text of it that asks for the answer")
      ->group("Conversations");
  AddTemplateOptions(*command, arguments->prompts);
  const auto others = static_cast<std::ptrdiff_t>(command->get_options().size());
  AddSamplingOptions(*command, arguments->sampling);
  const std::vector<CLI::Option*> all = command->get_options();
  arguments->of_answers.insert(arguments->of_answers.end(), all.begin() + others, all.end());
  engine::SamplingParams& params = arguments->sampling.params;
  command->add_flag("--json", arguments->json,
                    "Show each answer as a line of JSON: prompt, sample (from 0), text, finish_reason (end_token, stop "
                    "or length), ids, log_probs, and top_log_probs if asked for");
  command
      ->add_option("--top-log-probs", params.top_log_probs,
                   "In JSON, show this many of the most likely tokens at each position")
      ->capture_default_str();
  arguments->of_answers.push_back(
      command->add_flag("--filtered-log-probs", params.filtered_log_probs,
                        "In JSON, show log-probabilities of what is sampled from, after all steps, rather than those "
                        "of the model at the temperature"));
  command->final_callback([arguments] { CheckTogether(*arguments); });
  return [arguments] { return Generate(*arguments); };
}

}  // namespace tdock::cli
