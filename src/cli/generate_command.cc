#include <ATen/Parallel.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/printable.h"
#include "cli/sampling_options.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/base/workers.h"
#include "engine/engine.h"
#include "engine/model_folder.h"
#include "model/decoder/adapter_files.h"
#include "model/decoder/device.h"
#include "nlohmann/json.hpp"
#include "trainer/stages/guard.h"

namespace tdock::cli {
namespace {

struct GenerateArguments {
  std::string model;
  std::string adapter;
  std::vector<std::string> prompts;
  SamplingArguments sampling;
  int64_t samples = 1;
  bool json = false;
  std::string device = "cpu";
  int threads = 0;
};

// The inputs that a call reads before it answers anything.
struct Inputs {
  engine::ModelFolder model;
  std::vector<engine::Prompt> prompts;
  engine::SamplingParams sampling;
};

absl::StatusOr<Inputs> Gather(const GenerateArguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(engine::SamplingParams sampling, ReadSampling(arguments.sampling));
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(arguments.device));
  TDOCK_ASSIGN_OR_RETURN(engine::ModelFolder folder, engine::LoadModelFolder(Env::Real(), arguments.model, device));
  if (!arguments.adapter.empty()) {
    model::Decoder& decoder = folder.decoder;
    TDOCK_RETURN_IF_ERROR(model::LoadAdapters(Env::Real(), arguments.adapter, &decoder));
    decoder = decoder.Merged();
  }
  std::vector<engine::Prompt> prompts;
  for (const std::string& text : arguments.prompts) {
    absl::StatusOr<std::vector<int32_t>> tokens = folder.tokenizer->Encode(text);
    if (!tokens.ok()) return Annotate(tokens.status(), absl::StrCat("prompt '", text, "'"));
    prompts.push_back({*std::move(tokens), arguments.samples});
  }
  return Inputs{std::move(folder), std::move(prompts), std::move(sampling)};
}

// One line. What is not UTF-8 becomes U+FFFD.
std::string JsonOf(const engine::Completion& completion, const std::string& prompt, int64_t sample,
                   const std::string& text, const text::Tokenizer& tokenizer) {
  using Json = nlohmann::ordered_json;
  Json line = {{"prompt", prompt},
               {"sample", sample},
               {"text", text},
               {"finish_reason", engine::NameOf(completion.finish_reason)},
               {"ids", completion.tokens},
               {"log_probs", completion.log_probs}};
  for (const std::vector<engine::TokenLogProb>& position : completion.top) {
    Json& tops = line["top_log_probs"].emplace_back(Json::array());
    for (const engine::TokenLogProb& top : position) {
      tops.push_back(
          {{"id", top.token}, {"token", tokenizer.IdToToken(top.token).value_or("")}, {"log_prob", top.log_prob}});
    }
  }
  return line.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

absl::Status Generate(const GenerateArguments& arguments) {
  const absl::StatusOr<Inputs> inputs = trainer::Guarded([&] { return Gather(arguments); });
  TDOCK_RETURN_IF_ERROR(Refused(inputs.status()));
  const engine::ModelFolder& model = inputs->model;
  at::set_num_threads(1);
  Workers workers(model::WorkerThreads(arguments.threads, model.decoder.device()), [] { at::init_num_threads(); });
  engine::Engine engine(model.decoder,
                        {.end_tokens = model.end_tokens, .workers = &workers, .tokenizer = model.tokenizer.get()});
  TDOCK_ASSIGN_OR_RETURN(const auto completions, engine.Generate(inputs->prompts, inputs->sampling));
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  for (size_t i = 0; i < completions.size(); ++i) {
    TDOCK_ASSIGN_OR_RETURN(const std::string text, engine::TextOf(completions[i], *model.tokenizer));
    const auto samples = static_cast<size_t>(arguments.samples);
    const std::string& prompt = arguments.prompts[i / samples];
    std::cout << (arguments.json
                      ? JsonOf(completions[i], prompt, static_cast<int64_t>(i % samples), text, *model.tokenizer)
                  : terminal ? Printable(text)
                             : text)
              << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

Command AddGenerate(CLI::App& app) {
  auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "Generates answers to prompts with a model, one line per answer.");
  command->add_option("--model", arguments->model, "Folder of the model, in the Hugging Face layout")->required();
  command->add_option("--adapter", arguments->adapter, "Folder of low-rank adapters for the model, in the PEFT layout");
  command->add_option("--prompt", arguments->prompts, "Prompt to answer; may be given more than once")->required();
  command->add_option("--samples", arguments->samples, "Number of answers per prompt")->capture_default_str();
  AddSamplingOptions(*command, arguments->sampling);
  engine::SamplingParams& params = arguments->sampling.params;
  command->add_flag("--json", arguments->json,
                    "Show each answer as a line of JSON: prompt, sample (from 0), text, finish_reason (end_token, stop "
                    "or length), ids, log_probs, and top_log_probs if asked for");
  command
      ->add_option("--top-log-probs", params.top_log_probs,
                   "With --json, show this many of the most likely tokens at each position")
      ->capture_default_str()
      ->needs("--json");
  command
      ->add_flag("--filtered-log-probs", params.filtered_log_probs,
                 "With --json, show log-probabilities of what is sampled from, after all steps, rather than those of "
                 "the model at the temperature")
      ->needs("--json");
  command->add_option("--device", arguments->device, "cpu, cuda or cuda:N")->capture_default_str();
  command
      ->add_option("--threads", arguments->threads,
                   "Threads, each working on different answers; 0: one per core, or one on a GPU")
      ->check(CLI::Range(0, 1024));
  return [arguments] { return Generate(*arguments); };
}

}  // namespace tdock::cli
