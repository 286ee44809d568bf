#include "data/data_config.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "data/phase_split.h"

namespace tdock::data {
namespace {

constexpr int64_t kMostSamples = int64_t{1} << 20;
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

void BindFiles(config::Spec& spec, DataConfig& config) {
  spec.String("data.name", &config.name, "Name of the data set, which selects its adapter.").NotEmpty();
  spec.String("data.path", &config.path, "A file, or a folder with a file per split; empty: from the hub's cache.");
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
  spec.Choice("data.style", &config.style,
              {{"adapter", StyleChoice::kOfAdapter}, {"text", StyleChoice::kText}, {"chat", StyleChoice::kChat}},
              "Whether prompt and answers are plain text, or turns for a template; adapter: as the adapter says.");
  for (const auto& [name, column] : {std::pair("prompt", &config.columns.prompt),
                                     {"chosen", &config.columns.chosen},
                                     {"rejected", &config.columns.rejected},
                                     {"conversation", &config.columns.conversation},
                                     {"label", &config.columns.label},
                                     {"text", &config.columns.text}}) {
    spec.String(absl::StrCat("data.columns.", name), column,
                absl::StrCat("Column with the ", name, "; empty: as the adapter says."));
  }
  spec.String("data.template", &config.chat_template,
              absl::StrCat("Template of conversations: ", absl::StrJoin(text::ChatTemplate::Names(), ", "),
                           "; empty: the model's own."));
  spec.String("data.split", &config.split, "The split: the prefix of the files' names.").NotEmpty();
  spec.String("data.phase_shares", &config.phase_shares,
              "Proportions in which the records are divided among phases, such as 2,4,4.");
  spec.Int("data.phase_index", &config.phase_index, "Index of this phase, from 0.").AtLeast(0);
  spec.Check({"data.phase_shares", "data.phase_index"}, [&config]() -> std::vector<std::string> {
    const auto shares = ParseShares(config.phase_shares);
    if (!shares.ok()) return {std::string(shares.status().message())};
    if (config.phase_index < static_cast<int64_t>(shares->size())) return {};
    return {absl::StrCat("there are only ", shares->size(), " phases")};
  });
}

}  // namespace

void BindData(config::Spec& spec, DataConfig& config) {
  BindFiles(spec, config);
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
  spec.Choice("data.train_on", &config.train_on,
              {{"replies", text::TrainOn::kReplies},
               {"last_reply", text::TrainOn::kLastReply},
               {"everything", text::TrainOn::kEverything}},
              "Which tokens count in the supervised loss.");
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

absl::StatusOr<Adapter> ResolveAdapter(Env& env, const DataConfig& config) {
  Adapters adapters;
  if (!config.adapters.empty()) {
    TDOCK_ASSIGN_OR_RETURN(const std::string yaml, ReadFileUpTo(env, config.adapters, kMaxAdaptersBytes));
    TDOCK_RETURN_IF_ERROR(adapters.AddYaml(yaml, config.adapters));
  }
  TDOCK_ASSIGN_OR_RETURN(Adapter adapter, adapters.Find(config.name));
  for (const auto column : {&Adapter::prompt, &Adapter::chosen, &Adapter::rejected, &Adapter::conversation,
                            &Adapter::label, &Adapter::text}) {
    if (!(config.columns.*column).empty()) adapter.*column = config.columns.*column;
  }
  if (config.style == StyleChoice::kText) adapter.style = Adapter::Style::kText;
  if (config.style == StyleChoice::kChat) adapter.style = Adapter::Style::kChat;
  return adapter;
}

absl::StatusOr<text::ChatTemplate> ResolveTemplate(Env& env, const DataConfig& config,
                                                   const std::string& model_folder) {
  if (config.chat_template.empty()) return text::ChatTemplate::OfModel(env, model_folder);
  return text::ChatTemplate::Named(config.chat_template);
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(Env& env, const DataConfig& config, Phase phase) {
  TDOCK_ASSIGN_OR_RETURN(const Adapter adapter, ResolveAdapter(env, config));
  std::string path = config.path;
  if (path.empty()) {
    const std::string hub = config.hub_cache.empty() ? DefaultHubCache(std::getenv) : config.hub_cache;
    TDOCK_ASSIGN_OR_RETURN(path, FindInHubCache(env, hub, config.name));
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> files, FindSplit(env, path, config.split));
  RecordLimits limits;
  limits.max_record_bytes = config.max_record_bytes;
  return Dataset::Open(env, files, FormatOf(config.format), adapter, phase, limits);
}

EncodingRules RulesOf(const DataConfig& config) {
  return {.max_seq_len = config.max_length,
          .max_prompt_len = config.max_prompt_length,
          .overlong_prompts = config.overlong_prompts,
          .train_on = config.train_on};
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

const Source<EncodedSample>& PhaseSamples::source() const {
  if (cache_ != nullptr) return *cache_;
  return *encoded_;
}

absl::StatusOr<std::unique_ptr<PhaseSamples>> PhaseSamples::Open(Env& env, const DataConfig& config, Phase phase,
                                                                 const text::Tokenizer& tokenizer,
                                                                 const std::string& model_folder, const DataLog& log) {
  TDOCK_ASSIGN_OR_RETURN(const Adapter adapter, ResolveAdapter(env, config));
  std::unique_ptr<PhaseSamples> made(new PhaseSamples);
  TDOCK_ASSIGN_OR_RETURN(made->dataset_, OpenDataset(env, config, phase));
  TDOCK_RETURN_IF_ERROR(made->TakeShare(config));
  std::optional<text::ChatTemplate> chat_template;
  if (NeedsTemplate(adapter, phase)) {
    TDOCK_ASSIGN_OR_RETURN(chat_template, ResolveTemplate(env, config, model_folder));
  }
  TDOCK_ASSIGN_OR_RETURN(SampleEncoder encoder,
                         SampleEncoder::Create(adapter, phase, tokenizer, chat_template, RulesOf(config)));
  TDOCK_ASSIGN_OR_RETURN(const text::ContentHash tokenizer_content, TokenizerContent(env, model_folder));
  const Dataset& dataset = *made->dataset_;
  const Subset<Sample>* const share = made->share_.get();
  const Source<Sample>& samples = share != nullptr ? static_cast<const Source<Sample>&>(*share) : dataset;
  made->encoded_ = std::make_unique<EncodedDataset>(
      samples, std::move(encoder), tokenizer_content,
      [&dataset, share](int64_t index) { return dataset.Place(share == nullptr ? index : share->InWhole(index)); });
  if (!config.cache.empty()) {
    const CacheOptions options{
        .folder = config.cache,
        .workers = static_cast<int>(config.num_workers),
        .skip_bad_records = config.skip_bad_records,
        .report = [&log](const absl::Status& bad) { log(absl::StrCat("left out: ", bad.message())); },
        .log = log};
    TDOCK_ASSIGN_OR_RETURN(made->cache_, OpenOrBuildCache(env, *made->encoded_, options));
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
