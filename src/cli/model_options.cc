#include "cli/model_options.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "model/decoder/adapter_files.h"
#include "model/decoder/device.h"

namespace tdock::cli {
namespace {

constexpr char kModelGroup[] = "How the model is run";

constexpr std::pair<const char*, std::optional<at::ScalarType>> kDtypes[] = {
    {"auto", std::nullopt}, {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}};

std::vector<std::string> DtypeNames() {
  std::vector<std::string> names;
  for (const auto& [name, dtype] : kDtypes) names.emplace_back(name);
  return names;
}

std::optional<at::ScalarType> DtypeNamed(const std::string& text) {
  return std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const auto& each) { return text == each.first; })
      ->second;
}

int ThreadsOf(const ModelArguments& arguments, const engine::ModelFolder& folder) {
  at::set_num_threads(1);
  return model::WorkerThreads(arguments.threads, folder.decoder.device());
}

}  // namespace

void AddModelOptions(CLI::App& command, const char* names, ModelArguments& arguments) {
  command.add_option(names, arguments.model, "Folder of the model, in the Hugging Face layout")->required();
  CLI::Option* adapter = command.add_option("--adapter", arguments.adapter,
                                            "Folder of low-rank adapters for the model, in the PEFT layout");
  command
      .add_flag("--unmerged", arguments.unmerged,
                "Compute the adapters beside the model's weights, instead of adding them to these first")
      ->needs(adapter);
  command
      .add_option(
          "--dtype", arguments.dtype,
          "Dtype of weights, activations, keys and values: auto, float32, bfloat16, or, on a GPU, float16; auto: "
          "that of the model's files where the processor is not slower in it, else float32")
      ->group(kModelGroup)
      ->check(CLI::IsMember(DtypeNames()))
      ->capture_default_str();
  command
      .add_flag("--int8", arguments.int8,
                "Round the weights, and what they multiply, to 8 bits, in groups of 32 with a scale each: faster, and "
                "a little less exact; on the CPU")
      ->group(kModelGroup);
  command
      .add_option(
          "--kernels", arguments.kernels,
          "Instructions that the CPU computes with: auto (the fastest that it has), avx512_bf16, avx512, avx2, or "
          "portable, which gives the same bits on every processor")
      ->group(kModelGroup)
      ->check(CLI::IsMember({"auto", "avx512_bf16", "avx512", "avx2", "portable"}))
      ->capture_default_str();
  command
      .add_option("--speculative-tokens", arguments.speculative_tokens,
                  "Maximum number of tokens that are guessed in a step from what the prompt or the answer has said "
                  "before, or by the draft: where few answers are worked on at the same time, repetitions come faster; "
                  "the answers stay the same; 0: none")
      ->group(kModelGroup)
      ->check(CLI::Range(int64_t{0}, int64_t{64}))
      ->capture_default_str();
  command
      .add_option("--draft", arguments.draft,
                  "Folder of another model with the same tokens, which guesses what was not said before")
      ->group(kModelGroup);
  command.add_option("--device", arguments.device, "cpu, cuda or cuda:N")->group(kModelGroup)->capture_default_str();
  command.add_option("--threads", arguments.threads, "Threads that divide the work; 0: one per core, or one on a GPU")
      ->group(kModelGroup)
      ->check(CLI::Range(0, 1024));
}

void AddBatchOptions(CLI::App& command, ModelArguments& arguments) {
  command.add_option("--max-rows", arguments.max_rows, "Answers that are worked on at the same time, at most")
      ->group(kModelGroup)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command
      .add_option("--cache-mib", arguments.cache_mib,
                  "Memory for keys and values, in MiB; answers for which there is no room wait; 0: what --max-rows "
                  "answers need, at most half of what is free; with a draft a quarter more")
      ->group(kModelGroup)
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
}

absl::StatusOr<engine::ModelFolder> LoadModel(const ModelArguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const at::Device device, model::ParseDevice(arguments.device));
  if (device.is_cpu()) TDOCK_RETURN_IF_ERROR(Annotate(model::UseInstructions(arguments.kernels), "--kernels"));
  if (arguments.int8 && !device.is_cpu()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--int8 is for the CPU, and not for --device ", EscapeForMessage(arguments.device)));
  }
  const std::optional<at::ScalarType> dtype = DtypeNamed(arguments.dtype);
  if (dtype == at::kHalf && device.is_cpu()) {
    return absl::InvalidArgumentError(
        "--dtype float16 is for GPUs; the CPU computes in float32 or bfloat16, and --dtype auto chooses one");
  }
  TDOCK_ASSIGN_OR_RETURN(engine::ModelFolder folder,
                         engine::LoadModelFolder(Env::Real(), arguments.model, device, {.dtype = dtype}));
  if (!arguments.adapter.empty()) {
    TDOCK_RETURN_IF_ERROR(model::LoadAdapters(Env::Real(), arguments.adapter, &folder.decoder));
    if (!arguments.unmerged) folder.decoder = folder.decoder.Merged();
  }
  if (!arguments.draft.empty()) {
    if (arguments.speculative_tokens == 0) {
      return absl::InvalidArgumentError("--draft guesses tokens, so --speculative-tokens must be at least 1, not 0");
    }
    TDOCK_RETURN_IF_ERROR(
        Annotate(engine::LoadDraft(Env::Real(), arguments.draft, {.dtype = dtype}, folder), "--draft"));
  }
  return folder;
}

ServedModel::ServedModel(const ModelArguments& arguments, const engine::ModelFolder& folder)
    : workers_(ThreadsOf(arguments, folder), [] { at::init_num_threads(); }),
      engine_(folder.decoder, {.end_tokens = folder.end_tokens,
                               .max_rows = arguments.max_rows,
                               .workers = &workers_,
                               .tokenizer = folder.tokenizer.get(),
                               .cache_bytes = arguments.cache_mib << 20,
                               .speculative_tokens = arguments.speculative_tokens,
                               .draft = folder.draft ? &*folder.draft : nullptr,
                               .int8_weights = arguments.int8}) {}

}  // namespace tdock::cli
