#include <ATen/Parallel.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/base/workers.h"
#include "engine/engine.h"
#include "engine/model_folder.h"
#include "model/decoder/adapter_files.h"
#include "model/decoder/device.h"
#include "trainer/stages/guard.h"

namespace tdock::cli {
namespace {

struct GenerateArguments {
  std::string model;
  std::string adapter;
  std::vector<std::string> prompts;
  double temperature = 1.0;
  int64_t max_new_tokens = 128;
  int64_t samples = 1;
  uint64_t seed = 0;
  std::string device = "cpu";
  int threads = 0;
};

// The inputs that a call reads before it answers anything.
struct Inputs {
  engine::ModelFolder model;
  std::vector<engine::Prompt> prompts;
};

absl::StatusOr<Inputs> Gather(const GenerateArguments& arguments) {
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
  return Inputs{std::move(folder), std::move(prompts)};
}

absl::Status Generate(const GenerateArguments& arguments) {
  const absl::StatusOr<Inputs> inputs = trainer::Guarded([&] { return Gather(arguments); });
  TDOCK_RETURN_IF_ERROR(Refused(inputs.status()));
  at::set_num_threads(1);
  Workers workers(model::WorkerThreads(arguments.threads, inputs->model.decoder.device()),
                  [] { at::init_num_threads(); });
  const engine::Engine engine(inputs->model.decoder, {.end_tokens = inputs->model.end_tokens, .workers = &workers});
  TDOCK_ASSIGN_OR_RETURN(const auto completions,
                         engine.Generate(inputs->prompts, {.temperature = arguments.temperature,
                                                           .max_new_tokens = arguments.max_new_tokens,
                                                           .seed = arguments.seed}));
  for (const engine::Completion& completion : completions) {
    TDOCK_ASSIGN_OR_RETURN(const std::string text, inputs->model.tokenizer->Decode(completion.tokens));
    std::cout << text << "\n";
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
  command
      ->add_option("--temperature", arguments->temperature,
                   "Sampling temperature; 0 always takes the most likely token")
      ->capture_default_str();
  command->add_option("--max-new-tokens", arguments->max_new_tokens, "Maximum number of tokens in an answer")
      ->capture_default_str();
  command->add_option("--samples", arguments->samples, "Number of answers per prompt")->capture_default_str();
  command->add_option("--seed", arguments->seed, "Seed of the sampling")->capture_default_str();
  command->add_option("--device", arguments->device, "cpu, cuda or cuda:N")->capture_default_str();
  command
      ->add_option("--threads", arguments->threads,
                   "Threads, each working on different answers; 0: one per core, or one on a GPU")
      ->check(CLI::Range(0, 1024));
  return [arguments] { return Generate(*arguments); };
}

}  // namespace tdock::cli
