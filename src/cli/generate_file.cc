#include "cli/generate_file.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/answer_file.h"
#include "cli/answer_json.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/prompt_file.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/content_hash.h"
#include "trainer/run_log/progress.h"

namespace tdock::cli {
namespace {

using Json = nlohmann::ordered_json;

// The files that say what the model is, beside its weights.
absl::StatusOr<Json> ModelFiles(Env& env, const std::string& folder) {
  constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
  Json hashes = Json::object();
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer.model"}) {
    const std::string path = JoinPath(folder, name);
    if (!env.Exists(path)) continue;
    TDOCK_ASSIGN_OR_RETURN(const std::string contents, ReadFileUpTo(env, path, kMaxBytes));
    hashes[name] = text::Hex(text::HashOf(contents));
  }
  return hashes;
}

// What decides the answers to a prompt. Threads, rows and memory only do by the last bits of the logits, if at all.
Json MadeWith(const FileWork& work, const PromptArguments& prompts, const Json& model_files,
              const PromptFileSummary& input, engine::Engine& engine) {
  const engine::SamplingParams& sampling = work.sampling;
  Json logit_bias = Json::object();
  for (const auto& [token, bias] : sampling.logit_bias) logit_bias[absl::StrCat(token)] = bias;
  return {{"format", 1},
          {"model", absl::StrFormat("%016x", engine.weights().hash)},
          {"files of the model", model_files},
          {"end_tokens", work.model.end_tokens},
          {"input", text::Hex(input.content)},
          {"chat", prompts.chat},
          {"system", prompts.system.value_or("")},
          {"template", prompts.data.chat_template},
          {"template_variables", prompts.data.template_variables},
          {"template_date", prompts.data.template_date},
          {"tokens of the prompts", text::Hex(input.tokens)},
          {"samples", work.samples},
          {"in_order", work.arguments.in_order},
          {"dtype", c10::toString(work.model.decoder.compute_type())},
          {"int8", work.int8},
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
  // `scored`: what the file of answers has already; with --score.
  FileGeneration(const FileWork& work, engine::Engine& engine, PromptFile& prompts, AnswerFile& answers, int64_t total,
                 const ScoreTotals& scored)
      : work_(work), engine_(engine), prompts_(prompts), answers_(answers), total_(total), scored_(scored) {}

  absl::Status Run(const std::atomic<bool>& stop) {
    const bool score = work_.arguments.score;
    progress_.Begin(score ? "scoring" : "generating", total_, answers_.found(), score ? "record" : "answer");
    begun_ = Clock::Real().Now();
    for (;;) {
      TDOCK_RETURN_IF_ERROR(Feed());
      if (!engine_.HasWork()) break;
      if (stop) return absl::CancelledError("interrupted");
      for (const engine::Answer& answer : engine_.Step()) TDOCK_RETURN_IF_ERROR(Take(answer));
      ShowProgress();
    }
    progress_.End();
    TDOCK_RETURN_IF_ERROR(answers_.Close());
    return failed_;
  }

  // The answers that are in the file.
  int64_t written() const { return answers_.found() + written_; }
  const ScoreTotals& scored() const { return scored_; }

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

  std::string Place(int64_t line) const { return absl::StrCat(EscapeUnprintable(work_.arguments.input), ":", line); }

  bool IsAnswered(int64_t line) const {
    for (int64_t sample = 0; sample < work_.samples; ++sample) {
      if (!answers_.Has(line, sample)) return false;
    }
    return true;
  }

  absl::Status Add(FilePrompt prompt) {
    std::vector<int32_t> tokens = work_.arguments.score ? prompt.tokens : std::move(prompt.tokens);
    engine::Request request{.prompt = {std::move(tokens), work_.samples, static_cast<uint64_t>(prompt.line)},
                            .sampling = work_.sampling};
    if (work_.arguments.score) request.prompt_log_probs = work_.sampling.top_log_probs;
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
    TDOCK_RETURN_IF_ERROR(Annotate(id.status(), Place(open.prompt.line)));
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
    if (!answer.status.ok()) {  // the others are answered all the same
      failed_.Update(Annotate(answer.status, Place(line)));
      if (--open.missing == 0) open_.erase(found);
      held_back_.erase({line, answer.sample});
      return WriteHeldBack();
    }
    Json json = Json::object();
    json["line"] = line;
    if (!work_.arguments.score) json["sample"] = answer.sample;
    json.update(open.prompt.fields);
    if (work_.arguments.score) {
      AddScores(open.prompt.tokens, open.prompt.counted, *answer.completion.prompt_log_probs, *work_.model.tokenizer,
                json);
      TDOCK_RETURN_IF_ERROR(scored_.Add(json));
      tokens_ += std::ssize(open.prompt.tokens);
    } else {
      TDOCK_RETURN_IF_ERROR(AddAnswer(answer.completion, *work_.model.tokenizer, json));
      tokens_ += std::ssize(answer.completion.tokens);
    }
    if (--open.missing == 0) open_.erase(found);
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

  void ShowProgress() {
    const double seconds = absl::ToDoubleSeconds(Clock::Real().Now() - begun_);
    progress_.Update(written(), {{"tokens/s", static_cast<double>(tokens_) / std::max(seconds, 1e-6)}});
  }

  const FileWork& work_;
  engine::Engine& engine_;
  PromptFile& prompts_;
  AnswerFile& answers_;
  const int64_t total_;  // answers
  trainer::Progress progress_{trainer::ProgressOutput::StandardError(), Clock::Real()};
  absl::Time begun_;
  bool all_read_ = false;
  std::map<engine::RequestId, OpenPrompt> open_;
  int64_t under_way_ = 0;  // answers
  // With --in-order: the answers that are under way, and those that wait for them, by line and sample.
  std::map<std::pair<int64_t, int64_t>, std::optional<std::string>> held_back_;
  int64_t written_ = 0, tokens_ = 0;
  ScoreTotals scored_;
  absl::Status failed_;  // the first answer that did
};

// With the day that a template shows, if it shows one.
struct EncoderOfFile {
  PromptArguments arguments;
  PromptEncoder encoder;
};

// Answers that are there already keep the day of their first.
absl::StatusOr<EncoderOfFile> MakeEncoder(Env& env, const FileWork& work) {
  const text::Tokenizer& tokenizer = *work.model.tokenizer;
  PromptArguments arguments = work.prompts;
  TDOCK_ASSIGN_OR_RETURN(PromptEncoder encoder, PromptEncoder::Create(arguments, work.folder, tokenizer));
  std::string& day = arguments.data.template_date;
  if (!encoder.shows_day() || !day.empty()) return EncoderOfFile{std::move(arguments), std::move(encoder)};
  const std::optional<Json> before =
      work.arguments.overwrite ? std::nullopt : AnswerFile::MadeWith(env, work.arguments.output);
  if (before && before->contains("template_date") && (*before)["template_date"].is_string()) {
    day = (*before)["template_date"].get<std::string>();
  }
  if (day.empty()) day = absl::FormatTime("%Y-%m-%d", Clock::Real().Now(), absl::LocalTimeZone());
  TDOCK_ASSIGN_OR_RETURN(PromptEncoder dated, PromptEncoder::Create(arguments, work.folder, tokenizer));
  return EncoderOfFile{std::move(arguments), std::move(dated)};
}

// Whether the model has positions, and the cache has room, for a prompt of so many tokens and its answer.
absl::Status CheckLength(const FileWork& work, int64_t tokens) {
  const int64_t positions = work.model.decoder.config().context_length();
  const bool score = work.arguments.score;
  if (tokens + (score ? 0 : 1) > positions) {
    return absl::InvalidArgumentError(absl::StrCat(
        score ? "it has " : "its prompt has ", tokens, " tokens, ",
        score ? "more than the " : "which leaves no room for an answer in the ", positions, " positions of the model"));
  }
  if (work.cache_bytes == 0) return absl::OkStatus();
  const int64_t longest = tokens + std::min(work.sampling.max_new_tokens, positions - tokens);
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  const int64_t needed = engine::CacheBytesFor({.cache_bytes = kNoLimit}, work.model.decoder, /*rows=*/1, longest);
  if (needed <= work.cache_bytes) return absl::OkStatus();
  const std::string with_answer = score ? "" : absl::StrCat(", with an answer up to ", longest);
  return absl::InvalidArgumentError(absl::StrCat(score ? "it has " : "its prompt has ", tokens, " tokens", with_answer,
                                                 ", whose keys and values take ", needed,
                                                 " bytes, more than the --cache-mib of ", work.cache_bytes >> 20));
}

// `work` must outlive them.
PromptFileRules RulesOf(const FileWork& work) {
  const bool score = work.arguments.score;
  using Names = std::vector<std::string>;
  return {.path = work.arguments.input,
          .check_length = [&work](int64_t tokens) { return CheckLength(work, tokens); },
          .taken_names = score ? Names{"line", "ids", "loss_mask", "log_probs", "ranks", "top_log_probs",
                                       "scored_tokens", "sum_log_prob", "mean_log_prob"}
                               : Names{"line", "sample", "text", "finish_reason", "ids", "log_probs", "top_log_probs"},
          .skip_bad = work.arguments.skip_bad,
          .scores = score};
}

absl::Status CheckOptionsAreUsed(const FileWork& work, const PromptFileSummary& input) {
  const absl::string_view given = GivenTemplateOption(work.prompts);
  if (given.empty() || input.conversations > 0 || input.prompts == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(given, " is for conversations, and no line of ",
                                                 EscapeUnprintable(work.arguments.input),
                                                 " is one; give --chat if its prompts are what a user says"));
}

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
  command
      .add_flag("--score", arguments.score,
                "Generate nothing: write the log-probabilities of what the lines have, each a \"prompt\" with a "
                "\"completion\", turns that end with a reply, or a \"text\", and show the perplexity at the end")
      ->group(kFileGroup)
      ->needs(output);
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
    return absl::InvalidArgumentError(
        absl::StrCat(EscapeUnprintable(work.arguments.output), " is both the input and the output"));
  }
  const absl::StatusOr<EncoderOfFile> encoder = MakeEncoder(env, work);
  TDOCK_RETURN_IF_ERROR(Refused(encoder.status()));
  const bool score = work.arguments.score;
  const PromptFileRules rules = RulesOf(work);
  absl::StatusOr<PromptFile> prompts = PromptFile::Open(env, rules, encoder->encoder);
  TDOCK_RETURN_IF_ERROR(Refused(prompts.status()));
  const absl::StatusOr<PromptFileSummary> input = prompts->Check(stop);
  TDOCK_RETURN_IF_ERROR(Refused(input.status()));
  TDOCK_RETURN_IF_ERROR(Refused(CheckOptionsAreUsed(work, *input)));
  const absl::StatusOr<Json> model_files = ModelFiles(env, work.folder);
  TDOCK_RETURN_IF_ERROR(Refused(model_files.status()));
  ScoreTotals scored;
  AnswerFile::Options options{.path = work.arguments.output,
                              .overwrite = work.arguments.overwrite,
                              .lines = input->lines,
                              .samples = work.samples,
                              .numbered = !score};
  if (score) options.on_found = [&](const Json& record) { return scored.Add(record); };
  Json made_with = MadeWith(work, encoder->arguments, *model_files, *input, engine);
  if (score) made_with["score"] = true;
  const auto answers = AnswerFile::Open(env, options, made_with);
  TDOCK_RETURN_IF_ERROR(Refused(answers.status()));
  if (input->bad > 0) {
    std::cerr << "skipped " << input->bad << (input->bad == 1 ? " line" : " lines") << " that cannot be "
              << (score ? "scored" : "answered") << "; the first: " << EscapeForTerminal(input->first_bad.message())
              << "\n";
  }
  const int64_t total = input->prompts * work.samples;
  const absl::string_view what = score ? "records" : "answers";
  if ((*answers)->found() > 0) {
    std::cerr << (*answers)->found() << " of " << total << " " << what << " are in "
              << EscapeUnprintable(work.arguments.output) << " already\n";
  }
  FileGeneration generation(work, engine, *prompts, **answers, total, scored);
  const absl::Status status = generation.Run(stop);
  if (score && status.ok()) std::cout << LineOf(generation.scored().ToJson()) << "\n";
  if (!absl::IsCancelled(status)) return Failed(status);
  return absl::CancelledError(absl::StrCat("interrupted; ", generation.written(), " of ", total, " ", what, " are in ",
                                           EscapeUnprintable(work.arguments.output),
                                           ", and the same call goes on with the others"));
}

}  // namespace tdock::cli
