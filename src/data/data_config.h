// The configuration of a data set, and the data set that it means.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/env.h"
#include "core/config/spec.h"
#include "data/adapter.h"
#include "data/dataset.h"
#include "data/encode.h"
#include "data/loader.h"
#include "data/source.h"
#include "data/token_cache.h"
#include "text/conversation.h"
#include "text/tokenizer.h"

namespace tdock::data {

enum class FormatChoice { kByName, kJsonLines, kJson, kCsv, kText, kParquet };
enum class StyleChoice { kOfAdapter, kText, kChat, kAlpaca };

// The value of DataConfig::name for which RecogniseForm() finds the adapter.
inline constexpr char kAutoName[] = "auto";

struct DataConfig {
  std::string name = kAutoName;
  std::string path = {};                        // a file or a folder; empty: `name` in the hub's cache
  std::vector<std::string> train_files = {};    // of OpenRunData(): files and folders; empty: `path`
  std::vector<std::string> train_weights = {};  // numbers, one for each of train_files; empty: all 1
  std::vector<std::string> val_files = {};      // files and folders
  double val_share = 0;                         // without val_files: how much of the training data is held out
  std::string hub_cache = {};                   // empty: DefaultHubCache()
  std::string adapters = {};                    // a YAML file
  FormatChoice format = FormatChoice::kByName;
  StyleChoice style = StyleChoice::kOfAdapter;
  Adapter columns = {};  // what is not empty stands for the adapter's
  std::string chat_template = {};
  std::string template_variables = {};  // JSON
  std::string template_date = {};       // YYYY-MM-DD; empty: today
  std::string split = "train";
  std::string phase_shares = "1";
  int64_t phase_index = 0;
  int64_t train_batch_size = 128;
  int64_t max_prompt_length = 256;
  int64_t max_length = 512;
  OverlongPrompts overlong_prompts = OverlongPrompts::kDrop;
  text::TrainOn train_on = text::TrainOn::kEachReply;
  bool allow_untrained_calls = false;
  bool shuffle = true;
  int64_t seed = 1;
  bool drop_last = true;
  int64_t num_workers = 2;
  bool skip_bad_records = false;
  int64_t max_record_bytes = int64_t{16} << 20;
  std::string cache = {};      // a folder; empty: no cache
  bool keep_messages = false;  // see EncodingRules; no key: the run sets it
};

// The keys data.*. `config` must outlive the spec.
void BindData(config::Spec& spec, DataConfig& config);

// The adapter by its name, or for kAutoName by the columns of `file`; with the columns and the style that are given
// beside it. InvalidArgument and NotFound as Adapters and RecogniseForm() give them.
absl::StatusOr<Adapter> ResolveAdapter(Env& env, const DataConfig& config, const RecordFile& file);

// `path` with the home folder for "~/" at its beginning.
std::string WithHomeFolder(const std::string& path);

// Where lines about what was left out or made anew go.
using DataLog = std::function<void(const std::string&)>;

// The template by its name, or the one of the model in `model_folder` where no name is given; with its variables. Where
// the template shows the day and the configuration does not say which, `log` gets a line with today's.
absl::StatusOr<text::ChatTemplate> ResolveTemplate(
    Env& env, const DataConfig& config, const std::string& model_folder,
    const DataLog& log = [](const std::string&) {});

// The records of the split, of all phases. Errors as those of FindSplit(), FindInHubCache() and Dataset::Open().
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(Env& env, const DataConfig& config, Phase phase);

EncodingRules RulesOf(const DataConfig& config);

// The samples of one phase as tokens, with all that they are made of. Thread-safe.
class PhaseSamples final : public Source<EncodedSample> {
 public:
  // The samples that data.phase_shares gives to data.phase_index, encoded for `phase`; with data.cache, from the file
  // there, which is written where it is missing, with data.num_workers threads; these also count the samples where a
  // record may make several. `tokenizer` is that of `model_folder`
  // (empty where that has no files yet), and must outlive it. InvalidArgument where the shares leave the phase no
  // record; FailedPrecondition where none of its records yields a sample: how many are too long or lack something, and
  // which key to set. Other errors are those of OpenDataset(), ResolveTemplate(), SampleEncoder::Create() and
  // BuildCache().
  static absl::StatusOr<std::unique_ptr<PhaseSamples>> Open(
      Env& env, const DataConfig& config, Phase phase, const text::Tokenizer& tokenizer,
      const std::string& model_folder, const DataLog& log = [](const std::string&) {});

  int64_t size() const override { return source().size(); }
  std::vector<absl::StatusOr<OrSkip<EncodedSample>>> Load(std::span<const int64_t> indexes) const override {
    return source().Load(indexes);
  }
  bool BeginsRecord(int64_t index) const override { return source().BeginsRecord(index); }
  text::ContentHash content() const override { return source().content(); }

  const Adapter& adapter() const { return dataset_->adapter(); }

  // The token that the template ends a reply with; nothing for samples without one.
  std::optional<int32_t> reply_end() const { return reply_end_; }

  // Null without data.cache. Its counts tell what was left out of it.
  const TokenCache* cache() const { return cache_.get(); }

 private:
  PhaseSamples() = default;

  absl::Status TakeShare(const DataConfig& config);
  void CountParts(const DataConfig& config, const DataLog& log);
  void WarnOfRewriting(const DataLog& log) const;
  absl::Status CheckUsable(const DataConfig& config, Phase phase) const;
  const Source<EncodedSample>& source() const;

  // Each made of the one before.
  std::unique_ptr<Dataset> dataset_;
  std::unique_ptr<Subset<Sample>> share_;  // null: all of them
  std::unique_ptr<EncodedDataset> encoded_;
  std::unique_ptr<TokenCache> cache_;
  std::optional<int32_t> reply_end_;
};

LoaderOptions LoaderOptionsOf(const DataConfig& config);

// The numbers of data.train_weights, one for each of data.train_files. InvalidArgument where they are not as many, or
// one is not above 0 and at most 1000.
absl::StatusOr<std::vector<double>> ParseWeights(const DataConfig& config);

}  // namespace tdock::data
