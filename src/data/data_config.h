// The configuration of a data set, and the data set that it means.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "config/spec.h"
#include "data/adapter.h"
#include "data/dataset.h"
#include "data/encode.h"
#include "data/loader.h"
#include "text/conversation.h"

namespace tdock::data {

enum class FormatChoice { kByName, kJsonLines, kJson, kCsv, kText, kParquet };
enum class StyleChoice { kOfAdapter, kText, kChat };

struct DataConfig {
  std::string name = "custom";
  std::string path = {};  // a file or a folder; empty: `name` in the hub's cache
  std::string hub_cache = {};
  std::string adapters = {};  // a YAML file
  FormatChoice format = FormatChoice::kByName;
  StyleChoice style = StyleChoice::kOfAdapter;
  Adapter columns = {};  // those that are not empty stand for the adapter's
  std::string chat_template = {};
  std::string split = "train";
  std::string phase_shares = "1";
  int64_t phase_index = 0;
  int64_t train_batch_size = 128;
  int64_t max_prompt_length = 256;
  int64_t max_length = 512;
  OverlongPrompts overlong_prompts = OverlongPrompts::kDrop;
  text::TrainOn train_on = text::TrainOn::kReplies;
  bool shuffle = true;
  int64_t seed = 1;
  bool drop_last = true;
  int64_t num_workers = 2;
  bool skip_bad_records = false;
  int64_t max_record_bytes = int64_t{16} << 20;
  std::string cache = {};  // a folder; empty: no cache
};

// The keys data.*. `config` must outlive the spec.
void BindData(config::Spec& spec, DataConfig& config);

// The adapter by its name, with the columns and the style that are given beside it. InvalidArgument and NotFound as
// Adapters gives them.
absl::StatusOr<Adapter> ResolveAdapter(Env& env, const DataConfig& config);

// The template by its name; or the one of the model in `model_folder`, where no name is given.
absl::StatusOr<text::ChatTemplate> ResolveTemplate(Env& env, const DataConfig& config, const std::string& model_folder);

// The records of the split. Errors as those of FindSplit(), FindInHubCache() and Dataset::Open().
absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(Env& env, const DataConfig& config, Phase phase);

EncodingRules RulesOf(const DataConfig& config);
LoaderOptions LoaderOptionsOf(const DataConfig& config);

}  // namespace tdock::data
