#include "trainer/preflight/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "core/base/status.h"
#include "trainer/preflight/grouped.h"
#include "trainer/preflight/rendering.h"

namespace tdock::trainer {
namespace {

double ShareOf(int64_t part, int64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string ReadText(const DataFigures& data) {
  if (data.complete()) return "all read";
  return absl::StrCat(Grouped(data.read), " of them read, from everywhere in the data");
}

std::string TokensText(const DataFigures& data) {
  if (!data.trains_on_data) return absl::StrCat(Grouped(data.tokens), " tokens of prompts; answers are generated");
  return absl::StrCat(Grouped(data.tokens), " tokens, ", Grouped(data.trained_tokens), " (",
                      Percent(ShareOf(data.trained_tokens, data.tokens)), ") trained on");
}

// "median 120, 95 % up to 480, longest 512 of 512 (data.max_length)"
std::string LengthsText(const DataFigures& data) {
  return absl::StrCat("median ", Grouped(data.median_length), ", 95 % up to ", Grouped(data.long_length), ", longest ",
                      Grouped(data.longest), " of ", Grouped(data.most_tokens), " tokens (", data.most_key, ")");
}

std::string DataText(const DataFigures& data) {
  std::string text = "\ndata\n";
  const auto line = [&](absl::string_view label, absl::string_view value) {
    absl::StrAppendFormat(&text, "  %-12s  %s\n", label, value);
  };
  line("training", absl::StrCat(Grouped(data.training), " samples, ", ReadText(data)));
  line("validation", data.validation == 0 ? "none" : absl::StrCat(Grouped(data.validation), " samples"));
  line("steps", Grouped(data.steps));
  line("usable", absl::StrCat(Grouped(data.usable), " samples (", Percent(ShareOf(data.usable, data.read)), ")"));
  line("tokens", TokensText(data));
  line(data.trains_on_data ? "lengths" : "prompts", LengthsText(data));
  for (const DataLoss& loss : data.losses) {
    line("", absl::StrCat(Grouped(loss.samples), " (", Percent(ShareOf(loss.samples, data.read)), ") ", loss.what, ": ",
                          loss.keys));
  }
  return text;
}

// Each line behind a bar, so that it is seen where a sample ends.
std::string Barred(absl::string_view text) {
  return absl::StrCat("  | ", absl::StrReplaceAll(text, {{"\n", "\n  | "}}));
}

absl::StatusOr<std::string> SamplesText(const DataFigures& data, const text::Tokenizer& tokenizer,
                                        const RolloutSection* rollout, bool terminal, size_t shown) {
  std::string text;
  for (size_t i = 0; i < std::min(shown, data.some.size()); ++i) {
    const data::EncodedSample& sample = data.some[i];
    TDOCK_ASSIGN_OR_RETURN(std::string rendered, RenderSample(tokenizer, sample, {.terminal = terminal}));
    if (rollout != nullptr) {
      const std::string generated =
          absl::StrCat("at most ", Grouped(rollout->max_response_length), " tokens, generated");
      absl::StrAppend(&rendered,
                      terminal ? absl::StrCat("\x1b[7m", generated, "\x1b[27m") : absl::StrCat("⟦", generated, "⟧"));
    }
    absl::StrAppend(&text, "\nsample, ", Grouped(static_cast<int64_t>(sample.ids.size())), " tokens; ",
                    terminal ? "inverse: trained on" : "⟦…⟧: trained on", "\n", Barred(rendered), "\n");
    if (rollout != nullptr && !sample.truth.empty()) {
      absl::StrAppend(&text, "  right answer: ", RenderText(sample.truth, 200), "\n");
    }
  }
  return text;
}

std::string MemoryText(const MemoryEstimate& memory) {
  std::string text = absl::StrCat("\nmemory ", memory.shares.empty() ? "" : "of rank 0 ", "at its peak, while ",
                                  memory.when, " (", memory.where, ", ", memory.arithmetic, ")\n");
  int width = 18;
  for (const MemoryPart& part : memory.parts) width = std::max(width, static_cast<int>(part.name.size()));
  for (const MemoryPart& part : memory.parts) {
    if (part.bytes == 0) continue;
    absl::StrAppendFormat(&text, "  %-*s %10s\n", width, part.name, Mebibytes(part.bytes));
  }
  absl::StrAppendFormat(&text, "  %-*s %10s", width, "together", Mebibytes(memory.peak));
  if (memory.available) absl::StrAppend(&text, " of ", Mebibytes(*memory.available), " available");
  if (memory.while_saving > 0) {
    absl::StrAppendFormat(&text, "\n  %-*s %10s more while a checkpoint is written", width, "",
                          Mebibytes(memory.while_saving));
  }
  return text + "\n";
}

std::string SharesText(const std::vector<TrainingShare>& shares) {
  std::string text;
  for (const TrainingShare& share : shares) {
    absl::StrAppendFormat(&text, "\nmemory of each of the %d ranks that train the %s; %s is %d\n", share.ranks,
                          share.role, share.zero_key, share.zero_stage);
    absl::StrAppendFormat(&text, "  %-6s  %12s %12s %12s %12s\n", "", "weights", "gradients", "moments", "together");
    for (size_t stage = 0; stage < share.bytes.size(); ++stage) {
      const TrainingShare::Bytes& kept = share.bytes[stage];
      absl::StrAppendFormat(&text, "  zero %d  %12s %12s %12s %12s\n", stage, Mebibytes(kept.weights),
                            Mebibytes(kept.gradients), Mebibytes(kept.moments), Mebibytes(kept.together()));
    }
  }
  return text;
}

std::string TrialText(const RewardTrial& trial) {
  std::string text = absl::StrFormat("\nreward: the right answer of a sample, scored in %.1f s\n", trial.seconds);
  for (const auto& [name, score] : trial.scores) {
    absl::StrAppendFormat(&text, "  %-28s  %s\n", name, score ? absl::StrFormat("%.3f", *score) : "not for it");
  }
  if (!trial.message.empty()) absl::StrAppend(&text, "  ", RenderText(trial.message, 800), "\n");
  return text;
}

std::string TrialText(const EnvironmentTrial& trial) {
  const EpisodeTrial& episode = trial.episode;
  std::string text = absl::StrFormat("\nenvironment %s: %s begun with the prompt of a sample in %.1f s\n", episode.name,
                                     episode.is_agent ? "an agent" : "an episode", trial.seconds);
  absl::StrAppendFormat(&text, "  %-28s  %s tokens%s\n", "first prompt", Grouped(episode.prompt_tokens),
                        episode.has_tools ? ", the tools among them" : "");
  if (!episode.said.empty()) absl::StrAppend(&text, "  it says: ", RenderText(episode.said, 800), "\n");
  return text;
}

std::string ServersText(const ServersTrial& trial) {
  return absl::StrFormat("servers that are listed (%s) answer; asking them took %.1f s\n", trial.where, trial.seconds);
}

std::string ProbeText(const ProbeFigures& probe) {
  std::string text =
      absl::StrCat("\nprobe: ", probe.answers, " answers to ", probe.prompts, " prompts, ",
                   absl::StrFormat("%.0f", static_cast<double>(probe.tokens) / probe.seconds), " tokens per second\n");
  const auto line = [&](absl::string_view label, absl::string_view value) {
    absl::StrAppendFormat(&text, "  %-28s  %s\n", label, value);
  };
  line("clipped at the length limit", Percent(ShareOf(probe.clipped, probe.answers)));
  line("empty", Percent(ShareOf(probe.empty, probe.answers)));
  std::string shown = "one of the answers";
  if (probe.scored) {
    if (probe.answers > probe.prompts) {
      line("groups with equal rewards",
           absl::StrCat(Percent(ShareOf(probe.equal_groups, probe.prompts)), ", from which nothing is learned"));
    }
    if (probe.unscored > 0)
      line("answers without a score", absl::StrCat(probe.unscored, "; their prompts are left out"));
    line("mean reward", absl::StrFormat("%.3f", probe.mean_reward));
    for (const auto& [rule, mean] : probe.mean_by_rule) line("  " + rule, absl::StrFormat("%.3f", mean));
    shown = absl::StrFormat("the answer with the highest reward, %.3f", probe.reward);
  } else {
    line("mean length", absl::StrFormat("%.1f tokens", ShareOf(probe.tokens, probe.answers)));
    line("rewards", "come from another process (trainer.external_stages)");
  }
  absl::StrAppend(&text, "  ", shown, "\n",
                  Barred(absl::StrCat("prompt: ", RenderText(probe.prompt, 400), "\nanswer: ",
                                      RenderText(probe.answer, 800), "\nright:  ", RenderText(probe.truth, 200))),
                  "\n");
  return text;
}

// The same in a line.
std::string ProbeLine(const ProbeFigures& probe) {
  std::string text = absl::StrCat(probe.answers, " answers to ", probe.prompts, " prompts before the first step: ");
  if (probe.scored) absl::StrAppendFormat(&text, "mean reward %.3f, ", probe.mean_reward);
  if (probe.scored && probe.answers > probe.prompts) {
    absl::StrAppend(&text, Percent(ShareOf(probe.equal_groups, probe.prompts)), " of the groups with equal rewards, ");
  }
  absl::StrAppend(&text, Percent(ShareOf(probe.clipped, probe.answers)), " cut at the length limit, ",
                  Percent(ShareOf(probe.empty, probe.answers)), " empty\n");
  return text;
}

}  // namespace

std::string NumbersText(const NumberReport& numbers) {
  size_t name = 0, value = 0;
  for (const DerivedNumber& derived : numbers.derived) {
    name = std::max(name, derived.name.size());
    value = std::max(value, Grouped(derived.value).size());
  }
  std::string text = "numbers\n";
  for (const DerivedNumber& derived : numbers.derived) {
    absl::StrAppendFormat(&text, "  %-*s  %*s  %s\n", static_cast<int>(name), derived.name, static_cast<int>(value),
                          Grouped(derived.value), derived.how);
  }
  return text;
}

absl::StatusOr<std::string> ReportText(const PreflightReport& report, const text::Tokenizer& tokenizer,
                                       const RolloutSection* rollout, bool terminal, size_t shown) {
  TDOCK_ASSIGN_OR_RETURN(const std::string samples, SamplesText(report.data, tokenizer, rollout, terminal, shown));
  std::string text =
      absl::StrCat(DataText(report.data), samples, MemoryText(report.memory), SharesText(report.memory.shares));
  if (report.reward) text += TrialText(*report.reward);
  if (report.environment) text += TrialText(*report.environment);
  if (report.servers) absl::StrAppend(&text, "\n", ServersText(*report.servers));
  if (report.probe) text += ProbeText(*report.probe);
  if (!report.warnings.empty()) text += "\n";
  for (const std::string& warning : report.warnings) absl::StrAppend(&text, "warning: ", warning, "\n");
  return text;
}

std::string SummaryText(const PreflightReport& report) {
  const DataFigures& data = report.data;
  std::string text =
      absl::StrCat(Grouped(data.training), " samples to train on, ", Grouped(data.validation), " to validate with, ",
                   Grouped(data.steps), " steps; ", TokensText(data), data.complete() ? "" : " (",
                   data.complete() ? "" : ReadText(data), data.complete() ? "" : ")", "\n");
  absl::StrAppend(&text, "about ", Mebibytes(report.memory.peak), " of memory at the peak");
  if (report.memory.available) absl::StrAppend(&text, "; ", Mebibytes(*report.memory.available), " are available");
  text += "\n";
  if (report.servers) text += ServersText(*report.servers);
  if (report.probe) text += ProbeLine(*report.probe);
  for (const std::string& warning : report.warnings) absl::StrAppend(&text, "warning: ", warning, "\n");
  return text;
}

}  // namespace tdock::trainer
