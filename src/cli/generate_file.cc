#include "cli/generate_file.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/answer_file.h"
#include "cli/answer_json.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/prompt_file.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "core/base/file_lock.h"
#include "core/base/status.h"
#include "text/content_hash.h"
#include "trainer/run_log/progress.h"

namespace tdock::cli {
namespace {

using Json = nlohmann::ordered_json;

// What decides the answers to a prompt. Threads, rows and memory only do by the last bits of the logits, if at all.
// The contents of a file of the model, empty where there is none.
std::string ContentOf(const FileWork& work, const char* name) {
  constexpr uint64_t kMost = uint64_t{1} << 30;
  const absl::StatusOr<std::string> read = ReadFileUpTo(Env::Real(), absl::StrCat(work.folder, "/", name), kMost);
  return read.ok() ? text::Hex(text::HashOf(*read)) : "";
}

Json MadeWith(const FileWork& work, const PromptFileSummary& input, engine::Engine& engine) {
  const engine::SamplingParams& sampling = work.sampling;
  Json logit_bias = Json::object();
  for (const auto& [token, bias] : sampling.logit_bias) logit_bias[absl::StrCat(token)] = bias;
  return {{"format", 1},
          {"model", absl::StrFormat("%016x", engine.weights().hash)},
          {"config.json", ContentOf(work, "config.json")},
          {"tokenizer.json", ContentOf(work, "tokenizer.json")},
          {"end_tokens", work.model.end_tokens},
          {"input", text::Hex(input.content)},
          {"chat", work.prompts.chat},
          {"system", work.prompts.system.value_or("")},
          {"template", work.prompts.data.chat_template},
          {"tokens of the prompts", text::Hex(input.tokens)},
          {"samples", work.samples},
          {"in_order", work.arguments.in_order},
          {"batch_invariant", work.model.decoder.batch_invariant()},
          {"seed", sampling.seed},
          {"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repetition_penalty", sampling.repetition_penalty},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"logit_bias", logit_bias},
          {"allowed_tokens", sampling.allowed_tokens},
          {"max_new_tokens", sampling.max_new_tokens},
          {"min_new_tokens", sampling.min_new_tokens},
          {"ignore_eos", sampling.ignore_eos},
          {"stop_tokens", sampling.stop_tokens},
          {"stop", sampling.stop},
          {"top_log_probs", sampling.top_log_probs},
          {"filtered_log_probs", sampling.filtered_log_probs}};
}

// Feeds the engine from the input, and the output from the engine.
class FileGeneration {
 public:
  FileGeneration(const FileWork& work, engine::Engine& engine, PromptFile& prompts, AnswerFile& answers,
                 const PromptFileSummary& input)
      : work_(work),
        engine_(engine),
        prompts_(prompts),
        answers_(answers),
        lines_(input.lines),
        total_(input.prompts * work.samples) {}

  absl::Status Run(const std::atomic<bool>& stop) {
    progress_.Begin("generating", total_, answers_.found(), "answer");
    begun_ = Clock::Real().Now();
    for (;;) {
      TDOCK_RETURN_IF_ERROR(Feed());
      if (!engine_.HasWork()) break;
      if (stop) return absl::CancelledError("interrupted");
      for (engine::Answer& answer : engine_.Step()) TDOCK_RETURN_IF_ERROR(Take(answer));
      ShowProgress();
    }
    progress_.End();
    TDOCK_RETURN_IF_ERROR(answers_.Close());
    if (failed_.ok() && has_grown_) {
      return absl::FailedPreconditionError(absl::StrCat(
          work_.arguments.input, " has grown meanwhile; what is behind line ", lines_, " is not answered"));
    }
    return failed_;
  }

  // The answers that are in the file.
  int64_t written() const { return answers_.found() + written_; }

 private:
  struct OpenPrompt {
    FilePrompt prompt;
    int64_t missing;            // answers
    std::vector<bool> settled;  // by sample: there before, or taken
  };

  // Adds prompts until enough answers are under way, or wait to be written.
  absl::Status Feed() {
    const int64_t most = 4 * work_.max_rows;
    const auto in_memory = [&] {
      return work_.arguments.in_order ? static_cast<int64_t>(held_back_.size()) : under_way_;
    };
    while (!all_read_ && (open_.empty() || in_memory() < most)) {
      TDOCK_ASSIGN_OR_RETURN(std::optional<FilePrompt> prompt,
                             prompts_.Next([&](int64_t line) { return !IsAnswered(line); }));
      if (prompt) {
        TDOCK_RETURN_IF_ERROR(Add(*std::move(prompt)));
      } else {
        all_read_ = true;
      }
    }
    return absl::OkStatus();
  }

  bool IsAnswered(int64_t line) {
    if (line > lines_) {  // it was not there when the file was checked
      has_grown_ = true;
      return true;
    }
    for (int64_t sample = 0; sample < work_.samples; ++sample) {
      if (!answers_.Has(line, sample)) return false;
    }
    return true;
  }

  absl::Status Add(FilePrompt prompt) {
    engine::Request request{.prompt = {std::move(prompt.tokens), work_.samples, static_cast<uint64_t>(prompt.line)},
                            .sampling = work_.sampling};
    OpenPrompt open{.prompt = std::move(prompt), .missing = 0, .settled = {}};
    for (int64_t sample = 0; sample < work_.samples; ++sample) {
      const bool has = answers_.Has(open.prompt.line, sample);
      open.settled.push_back(has);
      if (!has) ++open.missing;
    }
    if (open.missing < work_.samples) {
      // The engine gives back what has ended as it is.
      const engine::Completion ended{
          .tokens = {0}, .log_probs = {0}, .finished = true, .finish_reason = engine::FinishReason::kEndToken};
      for (const bool has : open.settled) request.so_far.push_back(has ? ended : engine::Completion());
    }
    under_way_ += open.missing;
    const absl::StatusOr<engine::RequestId> id = engine_.Add(std::move(request));
    if (!id.ok()) {
      under_way_ -= open.missing;
      NoteFailure(id.status(), open.prompt.line);
      return absl::OkStatus();
    }
    if (work_.arguments.in_order) {
      for (int64_t sample = 0; sample < work_.samples; ++sample) {
        if (!open.settled[static_cast<size_t>(sample)]) held_back_[{open.prompt.line, sample}] = std::nullopt;
      }
    }
    open_.emplace(*id, std::move(open));
    return absl::OkStatus();
  }

  absl::Status Take(const engine::Answer& answer) {
    const auto found = open_.find(answer.request);
    if (found == open_.end()) return absl::OkStatus();  // what was settled before, of a prompt that is done
    OpenPrompt& open = found->second;
    const auto sample = static_cast<size_t>(answer.sample);
    if (open.settled[sample]) return absl::OkStatus();
    const int64_t line = open.prompt.line;
    open.settled[sample] = true;
    --under_way_;
    if (!answer.status.ok()) {
      NoteFailure(answer.status, line);
      if (--open.missing == 0) open_.erase(found);
      held_back_.erase({line, answer.sample});
      return WriteHeldBack();
    }
    Json json = {{"line", line}, {"sample", answer.sample}};
    json.update(open.prompt.fields);
    TDOCK_RETURN_IF_ERROR(AddAnswer(answer.completion, *work_.model.tokenizer, json));
    if (--open.missing == 0) open_.erase(found);
    tokens_ += static_cast<int64_t>(answer.completion.tokens.size());
    return Write(line, answer.sample, LineOf(json));
  }

  absl::Status Write(int64_t line, int64_t sample, std::string text) {
    if (!work_.arguments.in_order) {
      ++written_;
      return answers_.Append(text);
    }
    held_back_[{line, sample}] = std::move(text);
    return WriteHeldBack();
  }

  // Those that no answer under way comes before.
  absl::Status WriteHeldBack() {
    while (!held_back_.empty() && held_back_.begin()->second) {
      ++written_;
      TDOCK_RETURN_IF_ERROR(answers_.Append(*held_back_.begin()->second));
      held_back_.erase(held_back_.begin());
    }
    return absl::OkStatus();
  }

  // The others are answered all the same; the first failure is told at the end.
  void NoteFailure(const absl::Status& status, int64_t line) {
    if (failed_.ok()) failed_ = Annotate(status, absl::StrCat(work_.arguments.input, ":", line));
  }

  void ShowProgress() {
    const double seconds = absl::ToDoubleSeconds(Clock::Real().Now() - begun_);
    progress_.Update(written(), {{"tokens/s", static_cast<double>(tokens_) / std::max(seconds, 1e-6)}});
  }

  const FileWork& work_;
  engine::Engine& engine_;
  PromptFile& prompts_;
  AnswerFile& answers_;
  const int64_t lines_;  // of the input, when it was checked
  const int64_t total_;  // answers
  bool has_grown_ = false;
  absl::Status failed_;
  trainer::Progress progress_{trainer::ProgressOutput::StandardError(), Clock::Real()};
  absl::Time begun_;
  bool all_read_ = false;
  std::map<engine::RequestId, OpenPrompt> open_;
  int64_t under_way_ = 0;  // answers
  // With --in-order: the answers that are under way, and those that wait for them, by line and sample.
  std::map<std::pair<int64_t, int64_t>, std::optional<std::string>> held_back_;
  int64_t written_ = 0, tokens_ = 0;
};

}  // namespace

void AddFileOptions(CLI::App& command, FileArguments& arguments) {
  constexpr char kFileGroup[] = "From file to file";
  CLI::Option* input =
      command
          .add_option("--input", arguments.input,
                      "File of JSON lines, each with \"prompt\" (text, or a list of turns for the template) or "
                      "\"messages\" (turns)")
          ->group(kFileGroup);
  CLI::Option* output =
      command
          .add_option(
              "--output", arguments.output,
              "File for the answers: lines as with --json, with line (from 1) and sample (from 0), and all that "
              "the line of the input has. Answers that are there already are not generated again")
          ->group(kFileGroup);
  input->needs(output);
  output->needs(input);
  command.add_flag("--overwrite", arguments.overwrite, "Begin anew, whatever is in the output")
      ->group(kFileGroup)
      ->needs(output);
  command.add_flag("--in-order", arguments.in_order, "Write answers in the order of the input, not as they end")
      ->group(kFileGroup)
      ->needs(output);
  command
      .add_flag("--skip-bad", arguments.skip_bad, "Skip lines that cannot be answered; without it, they are refused")
      ->group(kFileGroup)
      ->needs(input);
}

absl::Status GenerateFile(const FileWork& work, engine::Engine& engine) {
  const std::atomic<bool>& stop = InterruptFlag();
  Env& env = Env::Real();
  std::error_code no_such_file;
  if (std::filesystem::equivalent(work.arguments.input, work.arguments.output, no_such_file)) {
    return absl::InvalidArgumentError(absl::StrCat(work.arguments.output, " is both the input and the output"));
  }
  const absl::StatusOr<PromptEncoder> encoder = PromptEncoder::Create(work.prompts, work.folder, *work.model.tokenizer);
  TDOCK_RETURN_IF_ERROR(Refused(encoder.status()));
  const PromptFileRules rules{
      .path = work.arguments.input,
      .context_length = work.model.decoder.config().context_length(),
      .taken_names = {"line", "sample", "text", "finish_reason", "ids", "log_probs", "top_log_probs"},
      .skip_bad = work.arguments.skip_bad};
  const absl::StatusOr<PromptFileSummary> input = PromptFile::Check(env, rules, *encoder);
  TDOCK_RETURN_IF_ERROR(Refused(input.status()));
  absl::StatusOr<PromptFile> prompts = PromptFile::Open(env, rules, *encoder);
  TDOCK_RETURN_IF_ERROR(Refused(prompts.status()));
  const auto lock = FileLock::Take(absl::StrCat(work.arguments.output, ".lock"),
                                   absl::StrCat("tdock generate, process ", ::getpid()));
  if (!lock.ok()) {
    return Refused(
        Annotate(lock.status(), absl::StrCat(work.arguments.output, " is being written by another process")));
  }
  const auto answers = AnswerFile::Open(env,
                                        {.path = work.arguments.output,
                                         .overwrite = work.arguments.overwrite,
                                         .lines = input->lines,
                                         .samples = work.samples},
                                        MadeWith(work, *input, engine));
  TDOCK_RETURN_IF_ERROR(Refused(answers.status()));
  if (input->bad > 0) {
    std::cerr << "skipped " << input->bad << (input->bad == 1 ? " line" : " lines")
              << " that cannot be answered; the first: " << input->first_bad.message() << "\n";
  }
  const int64_t total = input->prompts * work.samples;
  if ((*answers)->found() > 0) {
    std::cerr << (*answers)->found() << " of " << total << " answers are in " << work.arguments.output << " already\n";
  }
  FileGeneration generation(work, engine, *prompts, **answers, *input);
  const absl::Status status = generation.Run(stop);
  if (!absl::IsCancelled(status)) return Failed(status);
  return absl::CancelledError(absl::StrCat("interrupted; ", generation.written(), " of ", total, " answers are in ",
                                           work.arguments.output, ", and the same call generates the others"));
}

}  // namespace tdock::cli
