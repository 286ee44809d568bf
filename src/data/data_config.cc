#include "data/data_config.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/civil_time.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "data/adapter_fields.h"
#include "data/known_forms.h"
#include "data/phase_split.h"
#include "data/visit.h"

namespace tdock::data {
namespace {

constexpr int64_t kMostSamples = int64_t{1} << 20;
constexpr double kMostWeight = 1000;
constexpr uint64_t kMaxAdaptersBytes = uint64_t{1} << 20;

std::optional<Format> FormatOf(FormatChoice choice) {
  switch (choice) {
    case FormatChoice::kByName:
      return std::nullopt;
    case FormatChoice::kJsonLines:
      return Format::kJsonLines;
    case FormatChoice::kJson:
      return Format::kJson;
    case FormatChoice::kCsv:
      return Format::kCsv;
    case FormatChoice::kText:
      return Format::kText;
    case FormatChoice::kParquet:
      return Format::kParquet;
  }
  return std::nullopt;
}

// The beginning of the day; of today, if there is none.
absl::StatusOr<absl::Time> DayOf(const std::string& date) {
  if (date.empty()) return Clock::Real().Now();
  absl::CivilDay day;
  if (absl::ParseCivilTime(date, &day)) return absl::FromCivil(day, absl::LocalTimeZone());
  return absl::InvalidArgumentError(
      absl::StrCat("\"", EscapeForMessage(date), "\" is no day; write it as in 2026-01-31"));
}

void BindColumns(config::Spec& spec, DataConfig& config) {
  spec.Choice("data.style", &config.style,
              {{"adapter", StyleChoice::kOfAdapter},
               {"text", StyleChoice::kText},
               {"chat", StyleChoice::kChat},
               {"alpaca", StyleChoice::kAlpaca}},
              "Whether prompt and answers are plain text, turns for a template, or the prompt goes into Alpaca's text; "
              "adapter: as the adapter says.");
  for (const AdapterField& field : kAdapterFields) {
    spec.String(absl::StrCat("data.columns.", field.name), &(config.columns.*field.column),
                absl::StrCat("Column with the ", field.name, ", or the path to it; empty: as the adapter says."));
  }
  spec.String("data.truth_after", &config.columns.truth_after,
              "The right answer is what follows this text in its column; empty: as the adapter says.");
  spec.Strings("data.keep", &config.columns.keep, "More columns, which stages find in the dock, as texts.");
}

void BindFiles(config::Spec& spec, DataConfig& config) {
  spec.String("data.name", &config.name,
              "Name of the data set, which selects its adapter; auto: the columns of the file tell.")
      .NotEmpty();
  spec.Strings("data.train_files", &config.train_files, "Files, and folders with a file per split, to train on.");
  spec.Strings("data.train_weights", &config.train_weights,
               "How often an epoch has each sample of each of `data.train_files`, such as [1, 0.5]; empty: once.");
  spec.Strings("data.val_files", &config.val_files, "Files, and folders with a file per split, to validate with.");
  spec.Float("data.val_share", &config.val_share,
             "Share of the training records that is held out to validate with, where there are no `data.val_files`.")
      .AtLeast(0)
      .LessThan(1);
  spec.String("data.path", &config.path,
              "The same as one of `data.train_files`; both empty: `data.name` from the hub's cache.");
  spec.String(
      "data.hub_cache", &config.hub_cache,
      "Folder of the cache of huggingface_hub, which holds data sets by name; empty: $HF_HUB_CACHE, $HF_HOME/hub "
      "or ~/.cache/huggingface/hub, the first that is set.");
  spec.String("data.adapters", &config.adapters, "YAML file with more adapters, by name.");
  spec.Choice("data.format", &config.format,
              {{"by_name", FormatChoice::kByName},
               {"jsonl", FormatChoice::kJsonLines},
               {"json", FormatChoice::kJson},
               {"csv", FormatChoice::kCsv},
               {"text", FormatChoice::kText},
               {"parquet", FormatChoice::kParquet}},
              "Format of the files; by_name: according to the extension.");
  BindColumns(spec, config);
  spec.String("data.template", &config.chat_template,
              absl::StrCat("Template of conversations: ", absl::StrJoin(text::ChatTemplate::Names(), ", "),
                           "; empty: the model's own."));
  spec.String("data.template_variables", &config.template_variables,
              "More variables of the template, as a JSON object: {\"enable_thinking\": false}.");
  spec.String("data.template_date", &config.template_date,
              "The day (YYYY-MM-DD) that a template which shows the date shows; empty: today.");
  spec.Check({"data.template_date"}, [&config]() -> std::vector<std::string> {
    const absl::Status read = DayOf(config.template_date).status();
    return read.ok() ? std::vector<std::string>() : std::vector{std::string(read.message())};
  });
  spec.String("data.split", &config.split, "The split: the prefix of the files' names.").NotEmpty();
  spec.String("data.phase_shares", &config.phase_shares,
              "Proportions in which the records are divided among phases, such as 2,4,4.")
      .OrList();
  spec.Int("data.phase_index", &config.phase_index, "Index of this phase, from 0.").AtLeast(0);
  spec.Check({"data.phase_shares", "data.phase_index"}, [&config]() -> std::vector<std::string> {
    const auto shares = ParseShares(config.phase_shares);
    if (!shares.ok()) return {std::string(shares.status().message())};
    if (config.phase_index < static_cast<int64_t>(shares->size())) return {};
    return {absl::StrCat("there are only ", shares->size(), " phases")};
  });
}

void CheckRunFiles(config::Spec& spec, const DataConfig& config) {
  spec.Check({"data.train_files", "data.path"}, [&config]() -> std::vector<std::string> {
    if (config.train_files.empty() || config.path.empty()) return {};
    return {"data.path is the short form of data.train_files with one file; give one of the two"};
  });
  spec.Check({"data.train_weights", "data.train_files"}, [&config]() -> std::vector<std::string> {
    const auto weights = ParseWeights(config);
    return weights.ok() ? std::vector<std::string>() : std::vector{std::string(weights.status().message())};
  });
  spec.Check({"data.val_share", "data.val_files"}, [&config]() -> std::vector<std::string> {
    if (config.val_share == 0 || config.val_files.empty()) return {};
    return {"data.val_share is for where there are no data.val_files; give one of the two"};
  });
}

}  // namespace

absl::StatusOr<std::vector<double>> ParseWeights(const DataConfig& config) {
  if (config.train_weights.empty()) return std::vector<double>(std::max<size_t>(config.train_files.size(), 1), 1.0);
  if (config.train_weights.size() != config.train_files.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", config.train_weights.size(),
                                                   " data.train_weights for ", config.train_files.size(),
                                                   " data.train_files; give one for each"));
  }
  std::vector<double> weights;
  for (const std::string& text : config.train_weights) {
    double weight = 0;
    if (!absl::SimpleAtod(text, &weight) || !(weight > 0) || weight > kMostWeight) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", EscapeForMessage(text), "\" in data.train_weights is not a number above 0 and up to ", kMostWeight));
    }
    weights.push_back(weight);
  }
  return weights;
}

void BindData(config::Spec& spec, DataConfig& config) {
  BindFiles(spec, config);
  CheckRunFiles(spec, config);
  spec.Int("data.train_batch_size", &config.train_batch_size, "Samples per batch.").AtLeast(1).AtMost(kMostSamples);
  spec.Int("data.max_prompt_length", &config.max_prompt_length, "Maximum number of tokens of a prompt to answer.")
      .AtLeast(1)
      .AtMost(4 * kMostSamples);
  spec.Int("data.max_length", &config.max_length,
           "Maximum number of tokens of a sequence to train on; longer ones are truncated.")
      .AtLeast(1)
      .AtMost(4 * kMostSamples);
  spec.Choice("data.overlong_prompts", &config.overlong_prompts,
              {{"drop", OverlongPrompts::kDrop},
               {"truncate_left", OverlongPrompts::kTruncateLeft},
               {"error", OverlongPrompts::kError}},
              "What to do with longer prompts; they are counted.");
  spec.Choice(
      "data.train_on", &config.train_on,
      {{"each_reply", text::TrainOn::kEachReply},
       {"replies", text::TrainOn::kReplies},
       {"last_reply", text::TrainOn::kLastReply},
       {"everything", text::TrainOn::kEverything}},
      "Which tokens count in the supervised loss; each_reply: every reply once, as it was generated, in as many "
      "samples of its conversation as that takes.");
  spec.Bool("data.allow_untrained_calls", &config.allow_untrained_calls,
            "Use conversations in which the loss counts nothing of a call of a tool, instead of refusing them.");
  spec.Bool("data.shuffle", &config.shuffle, "Use a new order in each epoch.");
  spec.Int("data.seed", &config.seed, "Seed of the order, and of the phases.").AtLeast(0);
  spec.Bool("data.drop_last", &config.drop_last, "Leave out the last, incomplete batch of an epoch.");
  spec.Int("data.num_workers", &config.num_workers,
           "Threads that read and encode ahead; the order does not depend on their number.")
      .AtLeast(0)
      .AtMost(1024);
  spec.Bool("data.skip_bad_records", &config.skip_bad_records,
            "Leave out records that cannot be read, and count them, instead of stopping at the first.");
  spec.Int("data.max_record_bytes", &config.max_record_bytes, "Longer records count as unreadable.")
      .AtLeast(1)
      .AtMost(int64_t{1} << 30);
  spec.String("data.cache", &config.cache, "Folder for encoded samples; empty: they are encoded each time.");
}

absl::StatusOr<Adapter> ResolveAdapter(Env& env, const DataConfig& config, const RecordFile& file) {
  Adapters adapters;
  if (!config.adapters.empty()) {
    TDOCK_ASSIGN_OR_RETURN(const std::string yaml, ReadFileUpTo(env, config.adapters, kMaxAdaptersBytes));
    TDOCK_RETURN_IF_ERROR(adapters.AddYaml(yaml, config.adapters));
  }
  TDOCK_ASSIGN_OR_RETURN(Adapter adapter,
                         config.name == kAutoName ? RecogniseForm(file, config.columns) : adapters.Find(config.name));
  for (const AdapterField& field : kAdapterFields) {
    if (!(config.columns.*field.column).empty()) adapter.*field.column = config.columns.*field.column;
  }
  if (!config.columns.truth_after.empty()) adapter.truth_after = config.columns.truth_after;
  adapter.keep = config.columns.keep;
  if (config.style == StyleChoice::kText) adapter.style = Adapter::Style::kText;
  if (config.style == StyleChoice::kChat) adapter.style = Adapter::Style::kChat;
  if (config.style == StyleChoice::kAlpaca) adapter.style = Adapter::Style::kAlpaca;
  return adapter;
}

std::string WithHomeFolder(const std::string& path) {
  const char* const home = absl::StartsWith(path, "~/") ? std::getenv("HOME") : nullptr;
  return home == nullptr ? path : JoinPath(home, path.substr(2));
}

absl::StatusOr<text::ChatTemplate> ResolveTemplate(Env& env, const DataConfig& config, const std::string& model_folder,
                                                   const DataLog& log) {
  TDOCK_ASSIGN_OR_RETURN(text::ChatTemplate found, config.chat_template.empty()
                                                       ? text::ChatTemplate::OfModel(env, model_folder)
                                                       : text::ChatTemplate::Named(config.chat_template));
  if (!config.template_variables.empty()) {
    absl::StatusOr<text::ChatTemplate> with_variables = found.WithVariables(config.template_variables);
    if (!with_variables.ok()) return Annotate(with_variables.status(), "data.template_variables");
    found = *std::move(with_variables);
  }
  if (!found.shows_time()) return found;
  TDOCK_ASSIGN_OR_RETURN(const absl::Time day, DayOf(config.template_date));
  if (config.template_date.empty()) {
    const std::string today = absl::FormatTime("%Y-%m-%d", day, absl::LocalTimeZone());
    log(
        absl::StrCat("the template shows the date, which is that of today; to go on another day with what this run "
                     "reads, set data.template_date to ",
                     today));
  }
  // The day alone, so that all of a run shows the same.
  const absl::CivilDay civil = absl::ToCivilDay(day, absl::LocalTimeZone());
  return found.WithTime(absl::FromCivil(civil, absl::LocalTimeZone()), absl::LocalTimeZone());
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(Env& env, const DataConfig& config, Phase phase) {
  std::string path = WithHomeFolder(config.path);
  if (path.empty()) {
    if (config.name == kAutoName) {
      return absl::InvalidArgumentError(
          "no data is named: set data.train_files to files or folders, or data.name to a data set in the hub's cache");
    }
    const std::string hub = config.hub_cache.empty() ? DefaultHubCache(std::getenv) : config.hub_cache;
    TDOCK_ASSIGN_OR_RETURN(path, FindInHubCache(env, hub, config.name));
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> files, FindSplit(env, path, config.split));
  RecordLimits limits;
  limits.max_record_bytes = config.max_record_bytes;
  TDOCK_ASSIGN_OR_RETURN(std::vector<DataFile> opened, OpenDataFiles(env, files, FormatOf(config.format), limits));
  const auto first =
      std::find_if(opened.begin(), opened.end(), [](const DataFile& file) { return file.records->size() > 0; });
  if (first->records->columns().empty()) {  // as where no record can be read
    TDOCK_RETURN_IF_ERROR(first->records->Read(std::vector<int64_t>{0}, {}).front().status());
  }
  const absl::StatusOr<Adapter> adapter = ResolveAdapter(env, config, *first->records);
  if (!adapter.ok()) return config.name == kAutoName ? Annotate(adapter.status(), first->path) : adapter.status();
  return Dataset::Open(std::move(opened), *adapter, phase, limits);
}

EncodingRules RulesOf(const DataConfig& config) {
  return {.max_seq_len = config.max_length,
          .max_prompt_len = config.max_prompt_length,
          .overlong_prompts = config.overlong_prompts,
          .train_on = config.train_on,
          .allow_untrained_calls = config.allow_untrained_calls,
          .keep_messages = config.keep_messages};
}

absl::Status PhaseSamples::TakeShare(const DataConfig& config) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<double> shares, ParseShares(config.phase_shares));
  const auto index = static_cast<size_t>(config.phase_index);
  if (index >= shares.size()) {
    return absl::InvalidArgumentError(absl::StrCat("data.phase_shares \"", EscapeForMessage(config.phase_shares),
                                                   "\" has no phase ", config.phase_index, ", counted from 0"));
  }
  if (shares.size() == 1) return absl::OkStatus();
  std::vector<int64_t> indexes = PhaseIndexes(dataset_->size(), shares, index, static_cast<uint64_t>(config.seed));
  if (indexes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("data.phase_shares \"", EscapeForMessage(config.phase_shares),
                                                   "\" gives phase ", config.phase_index, " none of the ",
                                                   dataset_->size(), " records"));
  }
  share_ = std::make_unique<Subset<Sample>>(*dataset_, std::move(indexes));
  return absl::OkStatus();
}

absl::Status PhaseSamples::CheckUsable(const DataConfig& config, Phase phase) const {
  absl::Status first_bad;
  TDOCK_ASSIGN_OR_RETURN(const LoaderCounts counts, VisitSamples(*encoded_, 0, [&](const auto& sample) {
                           if (!sample.ok() && first_bad.ok()) first_bad = sample.status();
                           return !sample.ok() || !std::holds_alternative<EncodedSample>(*sample);
                         }));
  if (counts.samples > 0) return absl::OkStatus();
  if (!first_bad.ok() && (!config.skip_bad_records || absl::IsOutOfRange(first_bad))) return first_bad;
  return Annotate(NoSampleError(RulesOf(config), phase, counts), config.path.empty() ? config.name : config.path);
}

void PhaseSamples::CountParts(const DataConfig& config, const DataLog& log) {
  constexpr int64_t kManyRecords = 20'000;
  const int64_t records = encoded_->records();
  if (records >= kManyRecords && encoded_->makes_parts()) {
    log(absl::StrCat("counting the samples of ", records, " conversations (data.train_on: each_reply)",
                     config.cache.empty() ? "; with data.cache, later runs need not" : ""));
  }
  encoded_->CountParts(static_cast<int>(config.num_workers));
  if (encoded_->size() == records) return;
  log(absl::StrCat(records, " conversations make ", encoded_->size(),
                   " samples: the model's template renders earlier replies otherwise once more turns follow, and each "
                   "is trained as it was generated (data.train_on: each_reply)"));
}

// What reads otherwise in the middle of a conversation than at its end is nothing that the model will say.
void PhaseSamples::WarnOfRewriting(const DataLog& log) const {
  constexpr int64_t kMostRead = 256;
  std::vector<int64_t> indexes(static_cast<size_t>(std::min(size(), kMostRead)));
  std::iota(indexes.begin(), indexes.end(), 0);
  int64_t rewritten = 0;
  for (const absl::StatusOr<OrSkip<EncodedSample>>& loaded : Load(indexes)) {
    const auto* const sample = loaded.ok() ? std::get_if<EncodedSample>(&*loaded) : nullptr;
    rewritten += sample != nullptr && sample->rewritten ? 1 : 0;
  }
  if (rewritten == 0) return;
  log(absl::StrCat(
      "warning: in ", rewritten, " of the first ", indexes.size(),
      " samples, the model's template renders replies otherwise than they are generated: it does not put "
      "them behind the prompt that asks for them, so that the loss counts them from where the two part, or "
      "it changes earlier ones, as by leaving their thinking out, which the loss then only counts with "
      "data.train_on: each_reply. `tdock tokenize --chat` shows which"));
}

const Source<EncodedSample>& PhaseSamples::source() const {
  if (cache_ != nullptr) return *cache_;
  return *encoded_;
}

namespace {

// The last token of a reply. Nothing where the tokenizer lacks a token of the template, which Encode() tells.
std::optional<int32_t> EndOfReply(const text::ChatTemplate& chat_template, const text::Tokenizer& tokenizer) {
  const std::vector<text::Turn> turns = {{text::Role::kUser, ""}, {text::Role::kAssistant, ""}};
  const auto encoded = text::EncodeConversation(chat_template, tokenizer, turns);
  if (!encoded.ok()) return std::nullopt;
  const auto last = std::find(encoded->loss_mask.rbegin(), encoded->loss_mask.rend(), uint8_t{1});
  if (last == encoded->loss_mask.rend()) return std::nullopt;
  return encoded->ids[static_cast<size_t>(encoded->loss_mask.rend() - last) - 1];
}

// Of a tokenizer that has no files yet: its tokens.
absl::StatusOr<text::ContentHash> ContentOf(Env& env, const text::Tokenizer& tokenizer,
                                            const std::string& model_folder) {
  if (!model_folder.empty()) return TokenizerContent(env, model_folder);
  text::ContentHasher hasher;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    TDOCK_ASSIGN_OR_RETURN(const std::string token, tokenizer.Decode(std::span(&id, 1), text::SpecialTokens::kKeep));
    hasher.AddField(token);
  }
  return hasher.Value();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PhaseSamples>> PhaseSamples::Open(Env& env, const DataConfig& config, Phase phase,
                                                                 const text::Tokenizer& tokenizer,
                                                                 const std::string& model_folder, const DataLog& log) {
  std::unique_ptr<PhaseSamples> made(new PhaseSamples);
  TDOCK_ASSIGN_OR_RETURN(made->dataset_, OpenDataset(env, config, phase));
  TDOCK_RETURN_IF_ERROR(made->TakeShare(config));
  const Adapter& adapter = made->adapter();
  std::optional<text::ChatTemplate> chat_template;
  if (NeedsTemplate(adapter, phase)) {
    TDOCK_ASSIGN_OR_RETURN(chat_template, ResolveTemplate(env, config, model_folder, log));
    made->reply_end_ = EndOfReply(*chat_template, tokenizer);
  }
  TDOCK_ASSIGN_OR_RETURN(SampleEncoder encoder,
                         SampleEncoder::Create(adapter, phase, tokenizer, chat_template, RulesOf(config)));
  TDOCK_ASSIGN_OR_RETURN(const text::ContentHash tokenizer_content, ContentOf(env, tokenizer, model_folder));
  const Dataset& dataset = *made->dataset_;
  const Subset<Sample>* const share = made->share_.get();
  const Source<Sample>& samples = share != nullptr ? static_cast<const Source<Sample>&>(*share) : dataset;
  made->encoded_ = std::make_unique<EncodedDataset>(
      samples, std::move(encoder), tokenizer_content,
      [&dataset, share](int64_t index) { return dataset.Place(share == nullptr ? index : share->InWhole(index)); });
  const CacheOptions options{
      .folder = config.cache,
      .workers = static_cast<int>(config.num_workers),
      .skip_bad_records = config.skip_bad_records,
      .report = [&log](const absl::Status& bad) { log(absl::StrCat("left out: ", bad.message())); },
      .log = log};
  if (!config.cache.empty()) {
    TDOCK_ASSIGN_OR_RETURN(made->cache_, OpenCache(env, *made->encoded_, options));
  }
  if (made->cache_ == nullptr) {
    TDOCK_RETURN_IF_ERROR(made->CheckUsable(config, phase));
    made->CountParts(config, log);
  }
  if (chat_template) made->WarnOfRewriting(log);
  if (!config.cache.empty() && made->cache_ == nullptr) {
    TDOCK_ASSIGN_OR_RETURN(made->cache_, BuildCache(env, *made->encoded_, options));
  }
  return made;
}

LoaderOptions LoaderOptionsOf(const DataConfig& config) {
  LoaderOptions options;
  options.batch_size = config.train_batch_size;
  options.shuffle = config.shuffle;
  options.seed = static_cast<uint64_t>(config.seed);
  options.drop_last = config.drop_last;
  options.workers = static_cast<int>(config.num_workers);
  options.skip_bad_records = config.skip_bad_records;
  return options;
}

}  // namespace tdock::data
