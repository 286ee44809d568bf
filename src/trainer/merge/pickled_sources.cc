#include "trainer/merge/pickled_sources.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/supervised_process.h"
#include "core/base/utf8.h"
#include "model/files/config.h"
#include "trainer/merge/list_pickled.h"
#include "trainer/merge/listing/listed_tensors.h"
#include "trainer/merge/listing/megatron_names.h"
#include "trainer/merge/low_rank.h"
#include "trainer/merge/stored_numbers.h"

namespace tdock::trainer {
namespace {

constexpr absl::Duration kMostSilence = absl::Minutes(2);  // while a pickle is read
constexpr int64_t kMostMemory = int64_t{4} << 30;          // for what is in a pickle, which is no numbers
constexpr size_t kMostLine = size_t{1} << 20, kMostListed = size_t{256} << 20, kMostError = 2000;

// The lines that are whole are taken out of `text`.
absl::Status TakeLines(std::string* text, bool* done, std::vector<ListedTensor>* listed) {
  size_t begin = 0;
  for (size_t end = text->find('\n'); end != std::string::npos; end = text->find('\n', begin)) {
    const absl::string_view line = absl::string_view(*text).substr(begin, end - begin);
    begin = end + 1;
    if (line.size() >= kMostLine) return absl::InvalidArgumentError("a tensor's name or shape has no end");
    if (IsEndOfList(line)) {
      *done = true;
      continue;
    }
    TDOCK_ASSIGN_OR_RETURN(ListedTensor tensor, ParseListedTensor(line));
    listed->push_back(std::move(tensor));
  }
  text->erase(0, begin);
  return text->size() < kMostLine ? absl::OkStatus() : absl::InvalidArgumentError("the list of tensors has no end");
}

// What list_pickled.py prints in this mode.
absl::StatusOr<std::vector<ListedTensor>> List(const std::string& python, const char* mode, const std::string& folder) {
  TDOCK_ASSIGN_OR_RETURN(
      const std::unique_ptr<SupervisedProcess> process,
      SupervisedProcess::Start({.arguments = {python, "-I", "-S", "-c", ScriptReader("list_pickled.py"), mode, folder},
                                .limits = {.address_space_bytes = kMostMemory},
                                .texts = {{kListPickled, kScriptNumber}}}));
  process->CloseInput();
  std::vector<ListedTensor> listed;
  std::string text, errors;
  size_t bytes = 0;
  bool done = false;
  while (true) {
    absl::StatusOr<SupervisedProcess::Moved> moved = process->Move("", absl::Now() + kMostSilence);
    if (absl::IsOutOfRange(moved.status())) break;
    if (!moved.ok()) {
      return absl::DeadlineExceededError(absl::StrCat(EscapeUnprintable(python), ", which reads the pickles in ",
                                                      EscapeUnprintable(folder), ", said nothing for ",
                                                      absl::FormatDuration(kMostSilence)));
    }
    text += moved->out;
    bytes += moved->out.size();
    if (bytes > kMostListed) {
      return absl::InvalidArgumentError(absl::StrCat("the pickles in ", EscapeUnprintable(folder),
                                                     " name more tensors than ", kMostListed, " bytes tell of"));
    }
    errors = (errors + moved->err).substr(0, kMostError);
    TDOCK_RETURN_IF_ERROR(TakeLines(&text, &done, &listed));
  }
  if (done) return listed;
  return absl::InvalidArgumentError(
      absl::StrCat(EscapeUnprintable(python), ", which reads the pickles in ", EscapeUnprintable(folder),
                   ", ended before it was done; is it Python 3? (--python) ", EscapeUnprintable(errors)));
}

// The first of the folders that has a config.json.
absl::StatusOr<std::string> ConfigFolder(Env& env, const std::string& folder, std::vector<std::string> below) {
  for (const std::string& name : below) {
    const std::string path = name.empty() ? folder : JoinPath(folder, name);
    if (env.Exists(JoinPath(path, "config.json"))) return path;
  }
  return absl::NotFoundError(absl::StrCat("there is no config.json in ",
                                          EscapeUnprintable(JoinPath(folder, below.front())),
                                          ": put the config.json and the tokenizer of the model there"));
}

// Indexes 0 … size - 1 in the order of the names.
std::vector<size_t> OrderOf(const std::vector<std::string>& names) {
  std::vector<size_t> order(names.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return NameBefore(names[a], names[b]); });
  return order;
}

// What verl saves beside shards with adapters.
absl::StatusOr<double> LoraAlpha(Env& env, const std::string& folder) {
  const std::string path = JoinPath(folder, "lora_train_meta.json");
  const absl::StatusOr<std::string> text = ReadFileUpTo(env, path, model::kMaxConfigBytes);
  if (!text.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        EscapeUnprintable(folder), " has adapters that are not merged, and how much they count (lora_alpha) is in ",
        "lora_train_meta.json: ", text.status().message()));
  }
  const absl::StatusOr<nlohmann::json> json = ParseJsonObject(*text, /*max_depth=*/4);
  if (!json.ok()) return Annotate(json.status(), path);
  const nlohmann::json alpha = json->value("lora_alpha", nlohmann::json());
  if (alpha.is_number() && alpha > 0) return alpha.get<double>();
  return absl::InvalidArgumentError(absl::StrCat(EscapeUnprintable(path), ": lora_alpha is not a number above 0"));
}

}  // namespace

absl::StatusOr<WeightSource> OpenFsdpShards(Env& env, const std::string& folder, const std::string& python) {
  TDOCK_ASSIGN_OR_RETURN(const std::string config, ConfigFolder(env, folder, {"huggingface", ""}));
  TDOCK_ASSIGN_OR_RETURN(const std::vector<ListedTensor> listed, List(python, "fsdp", folder));
  absl::StatusOr<std::vector<StoredTensor>> put = PutRanksTogether(listed);
  if (!put.ok()) return Annotate(put.status(), folder);
  const auto tensors = std::make_shared<std::vector<StoredTensor>>();
  std::vector<std::string> names;
  for (const StoredTensor& tensor : *put) names.push_back(tensor.name);
  for (const size_t i : OrderOf(names)) tensors->push_back((*put)[i]);
  TDOCK_ASSIGN_OR_RETURN(BoxFiles opened, BoxFiles::Open(env, *tensors));
  const auto files = std::make_shared<const BoxFiles>(std::move(opened));
  WeightSource source{.what = absl::StrCat("the FSDP shards in ", EscapeUnprintable(folder)),
                      .files = files->names(),
                      .config_folder = config,
                      .tokenizer_folder = config};
  for (const StoredTensor& tensor : *tensors) source.weights.push_back({tensor.name, tensor.info});
  source.read = [files, tensors](size_t index, const at::Tensor& into) {
    return files->CopyWhole((*tensors)[index], into);
  };
  if (HasNamedAdapters(source)) {
    TDOCK_ASSIGN_OR_RETURN(const double alpha, LoraAlpha(env, folder));
    TDOCK_RETURN_IF_ERROR(Annotate(MergeNamedAdapters(alpha, source), folder));
  }
  return source;
}

absl::StatusOr<WeightSource> OpenMegatronCheckpoint(Env& env, const std::string& folder, const std::string& python) {
  std::string parts = folder;
  for (const char* name : {"dist_ckpt", "model/dist_ckpt"}) {
    if (env.Exists(JoinPath(folder, name))) parts = JoinPath(folder, name);
  }
  TDOCK_ASSIGN_OR_RETURN(const std::string config_folder,
                         ConfigFolder(env, folder, {"huggingface", "model/huggingface", ""}));
  const std::string path = JoinPath(config_folder, "config.json");
  TDOCK_ASSIGN_OR_RETURN(const std::string json, ReadFileUpTo(env, path, model::kMaxConfigBytes));
  const absl::StatusOr<model::ModelConfig> config = model::ParseModelConfig(json);
  if (!config.ok()) return Annotate(config.status(), path);
  TDOCK_ASSIGN_OR_RETURN(const std::vector<ListedTensor> listed, List(python, "dcp", parts));
  absl::StatusOr<std::vector<StoredTensor>> put = PutBoxesTogether(listed);
  if (!put.ok()) return Annotate(put.status(), parts);
  const auto tensors = std::make_shared<const std::vector<StoredTensor>>(*std::move(put));
  absl::StatusOr<std::vector<MappedWeight>> mapped = MapMegatron(*tensors, *config);
  if (!mapped.ok()) return Annotate(mapped.status(), parts);
  const auto weights = std::make_shared<std::vector<MappedWeight>>(*std::move(mapped));
  std::sort(weights->begin(), weights->end(),
            [](const MappedWeight& one, const MappedWeight& other) { return NameBefore(one.name, other.name); });
  TDOCK_ASSIGN_OR_RETURN(BoxFiles opened, BoxFiles::Open(env, *tensors));
  const auto files = std::make_shared<const BoxFiles>(std::move(opened));
  WeightSource source{.what = absl::StrCat("the Megatron checkpoint ", EscapeUnprintable(folder)),
                      .files = files->names(),
                      .config_folder = config_folder,
                      .tokenizer_folder = config_folder};
  for (const MappedWeight& weight : *weights) {
    source.weights.push_back({weight.name, {(*tensors)[weight.tensor].info.dtype, weight.shape}});
  }
  source.read = [files, tensors, weights](size_t index, const at::Tensor& into) {
    const MappedWeight& weight = (*weights)[index];
    return files->Copy((*tensors)[weight.tensor], weight.layer, weight.rows, into);
  };
  return source;
}

}  // namespace tdock::trainer
