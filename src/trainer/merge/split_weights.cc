#include "trainer/merge/split_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "model/decoder/decoder.h"
#include "model/decoder/weight_names.h"
#include "model/files/adapter_config.h"
#include "model/files/config.h"
#include "model/tensor_torch/convert.h"
#include "trainer/checkpoint/parts/tensor_parts.h"
#include "trainer/checkpoint/state_files.h"
#include "trainer/merge/first_difference.h"
#include "trainer/merge/low_rank.h"
#include "trainer/merge/own_sources.h"
#include "trainer/merge/stored_numbers.h"

namespace tdock::trainer {
namespace {

using model::ShowName;

constexpr char kWeightsIn[] = "weights_in", kInParts[] = "parts";
constexpr absl::string_view kStages = "stages/", kWeights = "/weights/";

// The name of the stage whose weights this tensor has, "stages/STAGE/weights/…"; "" of another tensor.
std::string StageOf(absl::string_view name) {
  const std::vector<absl::string_view> words = absl::StrSplit(name, '/');
  return words.size() >= 4 && words[0] == "stages" && words[2] == "weights" ? std::string(words[1]) : "";
}

// The tensors of all ranks that have numbers of the weights of a stage.
struct StoredParts {
  struct Place {
    size_t file;
    std::string name;
  };
  std::vector<model::SafetensorsFile> files;
  std::map<std::string, std::vector<Place>> by_parameter;  // "stages/actor/weights/3"
};

// The policy's: a critic has weights in the state as well.
absl::StatusOr<std::string> PolicyStage(const std::set<std::string>& stages, const std::string& folder) {
  if (stages.contains("actor")) return "actor";
  if (stages.size() == 1) return *stages.begin();
  return absl::InvalidArgumentError(absl::StrCat(
      EscapeUnprintable(folder), ": the weights are said to be in parts, which ",
      stages.empty() ? "no file has" : "are those of " + EscapeForMessage(absl::StrJoin(stages, ", "), 200)));
}

absl::StatusOr<StoredParts> FindParts(Env& env, const std::vector<std::string>& paths, const std::string& folder,
                                      std::string* stage) {
  StoredParts parts;
  std::set<std::string> stages;
  for (const std::string& path : paths) {
    TDOCK_ASSIGN_OR_RETURN(model::SafetensorsFile file, model::SafetensorsFile::Open(env, path));
    for (const std::string& name : file.names()) {
      if (StageOf(name).empty()) continue;
      stages.insert(StageOf(name));
      parts.by_parameter[name.substr(0, name.find('['))].push_back({parts.files.size(), name});
    }
    parts.files.push_back(std::move(file));
  }
  TDOCK_ASSIGN_OR_RETURN(*stage, PolicyStage(stages, folder));
  return parts;
}

// A weight of the Hugging Face layout: numbers of a parameter, in which projections may be fused.
struct Slice {
  size_t parameter = 0;
  int64_t begin = 0;        // of the parameter's numbers
  bool transposed = false;  // the layout stores the inputs first
};

std::vector<Slice> SlicesOf(const model::NamedTensors& weights, const std::vector<at::Tensor>& parameters) {
  std::vector<Slice> slices;
  for (const auto& [name, weight] : weights) {
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const at::Tensor& parameter) { return parameter.is_alias_of(weight); });
    TDOCK_CHECK(found != parameters.end(), "a weight is of no parameter");
    slices.push_back(
        {static_cast<size_t>(found - parameters.begin()), weight.storage_offset(), !weight.is_contiguous()});
  }
  return slices;
}

// A parameter as it is saved: which numbers are where.
struct SavedParameter {
  std::string name;
  DType dtype = DType::kF32;
  int64_t total = 0;
  std::vector<TensorPart> parts = {};
  std::vector<StoredParts::Place> places = {};
};

absl::StatusOr<SavedParameter> FindParameter(const StoredParts& stored, const std::string& name, int64_t total) {
  SavedParameter parameter{.name = name, .total = total};
  const auto found = stored.by_parameter.find(name);
  if (found == stored.by_parameter.end()) {
    return absl::InvalidArgumentError(absl::StrCat("no rank has a part of ", ShowName(name)));
  }
  for (const StoredParts::Place& place : found->second) {
    const model::TensorInfo& info = stored.files[place.file].Info(place.name);
    const auto numbers = static_cast<int64_t>(info.bytes() / SizeOf(info.dtype));
    if (!parameter.parts.empty() && info.dtype != parameter.dtype) {
      return absl::InvalidArgumentError(absl::StrCat("parts of ", ShowName(name), " are of different dtypes, ",
                                                     Name(parameter.dtype), " and ", Name(info.dtype)));
    }
    parameter.dtype = info.dtype;
    TensorPart part{.name = place.name, .begin = 0, .size = numbers};
    if (place.name != name) {
      TDOCK_ASSIGN_OR_RETURN(part, ParsePart(place.name, name, total, numbers));
    } else if (numbers != total) {
      return absl::InvalidArgumentError(absl::StrCat(ShowName(name), " has ", numbers, " numbers, not ", total));
    }
    parameter.parts.push_back(part);
    parameter.places.push_back(place);
  }
  TDOCK_RETURN_IF_ERROR(PlanCopies(name, parameter.parts, 0, total, total).status());
  return parameter;
}

absl::Status ReadSlice(const StoredParts& stored, const SavedParameter& parameter, const Slice& slice,
                       const at::Tensor& into) {
  if (slice.transposed) {
    at::Tensor rows = at::empty({into.size(1), into.size(0)}, into.options());
    TDOCK_RETURN_IF_ERROR(ReadSlice(stored, parameter, {slice.parameter, slice.begin, false}, rows));
    into.copy_(rows.t());
    return absl::OkStatus();
  }
  TDOCK_ASSIGN_OR_RETURN(const std::vector<PartCopy> copies,
                         PlanCopies(parameter.name, parameter.parts, slice.begin, into.numel(), parameter.total));
  const at::Tensor flat = into.view({-1});
  for (const PartCopy& copy : copies) {
    const StoredParts::Place& place = parameter.places[copy.part];
    const model::SafetensorsFile& file = stored.files[place.file];
    const size_t item = SizeOf(parameter.dtype);
    const auto bytes =
        file.Bytes(place.name).subspan(static_cast<size_t>(copy.from) * item, static_cast<size_t>(copy.size) * item);
    TDOCK_RETURN_IF_ERROR(CopyNumbers(*file.mapping(), bytes, parameter.dtype, flat.narrow(0, copy.to, copy.size)));
  }
  return absl::OkStatus();
}

absl::StatusOr<model::ModelConfig> ConfigIn(Env& env, const std::string& folder) {
  const std::string path = JoinPath(folder, "config.json");
  TDOCK_ASSIGN_OR_RETURN(const std::string json, ReadFileUpTo(env, path, model::kMaxConfigBytes));
  absl::StatusOr<model::ModelConfig> config = model::ParseModelConfig(json);
  if (!config.ok()) return Annotate(config.status(), path);
  return config;
}

// The tensors of these names, each numbers of one of the parameters, as the ranks have saved them.
absl::StatusOr<WeightSource> OpenNamed(Env& env, const std::string& folder, const model::NamedTensors& named,
                                       const std::vector<at::Tensor>& trained) {
  TDOCK_ASSIGN_OR_RETURN(const std::vector<std::string> paths, StateTensorFiles(env, folder));
  std::string stage;
  TDOCK_ASSIGN_OR_RETURN(StoredParts found, FindParts(env, paths, folder, &stage));
  std::vector<SavedParameter> parameters;
  for (const at::Tensor& parameter : trained) {
    const std::string name = absl::StrCat(kStages, stage, kWeights, parameters.size());
    absl::StatusOr<SavedParameter> saved = FindParameter(found, name, parameter.numel());
    if (!saved.ok()) return Annotate(saved.status(), folder);
    parameters.push_back(*std::move(saved));
  }
  const auto stored = std::make_shared<const StoredParts>(std::move(found));
  const std::vector<Slice> slices = SlicesOf(named, trained);
  std::vector<size_t> order(named.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return NameBefore(named[a].first, named[b].first); });
  WeightSource source{.files = paths, .config_folder = folder, .tokenizer_folder = folder};
  std::vector<Slice> ordered;
  for (const size_t i : order) {
    const DType dtype = parameters[slices[i].parameter].dtype;
    source.weights.push_back({named[i].first, {dtype, named[i].second.sizes().vec()}});
    ordered.push_back(slices[i]);
  }
  source.read = [stored, parameters = std::move(parameters), ordered = std::move(ordered)](size_t index,
                                                                                           const at::Tensor& into) {
    return ReadSlice(*stored, parameters[ordered[index].parameter], ordered[index], into);
  };
  return source;
}

// The adapters of the run, from the keys of its configuration; nothing if it has none.
absl::StatusOr<std::optional<model::LoraConfig>> LoraOf(const State& texts) {
  const auto text = [&](const char* key) {
    const auto found = texts.texts().find(absl::StrCat("fingerprint/model.", key));
    return found == texts.texts().end() ? absl::string_view() : absl::string_view(found->second);
  };
  model::LoraConfig lora{.rank = 0};
  if (text("lora_rank").empty() || text("lora_rank") == "0") return std::nullopt;
  if (!absl::SimpleAtoi(text("lora_rank"), &lora.rank) || !absl::SimpleAtod(text("lora_alpha"), &lora.alpha)) {
    return absl::InvalidArgumentError("state.json: model.lora_rank and model.lora_alpha are no numbers");
  }
  for (const auto& [key, names] :
       {std::pair("target_modules", &lora.targets), std::pair("modules_to_save", &lora.saved)}) {
    const std::string listed = absl::StrReplaceAll(text(key), {{"\"", ""}, {"'", ""}});
    for (const absl::string_view name : absl::StrSplit(listed, ',', absl::SkipWhitespace())) {
      names->emplace_back(absl::StripAsciiWhitespace(name));
    }
  }
  return lora;
}

// InvalidArgument for a factor, or a weight that was trained whole, for which the base has no weight of its shape: the
// merged model would lack what was trained.
absl::Status CheckFactorsFit(const WeightSource& whole, const WeightSource& factors, bool inputs_first,
                             const std::string& base) {
  for (const model::NamedInfo& factor : factors.weights) {
    absl::string_view path = factor.name;
    const bool is_a = absl::ConsumeSuffix(&path, ".lora_A.weight");
    const bool is_whole = !is_a && !absl::ConsumeSuffix(&path, ".lora_B.weight");
    const std::string name = is_whole ? factor.name : absl::StrCat(path, ".weight");
    const size_t index = IndexOf(whole, name);
    if (index == whole.weights.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the run adapts weight '", ShowName(name), "', which ",
                                                     EscapeUnprintable(base),
                                                     " lacks: --base is to be the model that it adapted, with the "
                                                     "names of Hugging Face's causal model"));
    }
    const std::vector<int64_t>& shape = whole.weights[index].info.shape;
    const std::vector<int64_t>& of_factor = factor.info.shape;
    const bool fits = is_whole ? of_factor == shape
                               : shape.size() == 2 && of_factor.size() == 2 &&
                                     (is_a ? of_factor[1] == shape[inputs_first ? 0 : 1]
                                           : of_factor[0] == shape[inputs_first ? 1 : 0]);
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrCat("'", ShowName(factor.name),
                                                     "', which was trained, does not fit weight '", ShowName(name),
                                                     "' of ", EscapeUnprintable(base), ", which has another shape"));
    }
  }
  return absl::OkStatus();
}

// A model with the adapters whose factors are in another source, "PATH.lora_A.weight" and "PATH.lora_B.weight", and
// with the weights that are there under their own names.
WeightSource WithFactors(const WeightSource& whole, WeightSource factors, double scale, bool inputs_first) {
  WeightSource source = whole;
  source.files.insert(source.files.end(), factors.files.begin(), factors.files.end());
  source.tokenizer_folder = factors.tokenizer_folder;
  source.read = [whole, factors = std::move(factors), scale, inputs_first](size_t index,
                                                                           const at::Tensor& into) -> absl::Status {
    const std::string& name = whole.weights[index].name;
    if (const size_t own = IndexOf(factors, name); own < factors.weights.size()) return factors.read(own, into);
    absl::string_view path = name;
    absl::ConsumeSuffix(&path, ".weight");
    const size_t a = IndexOf(factors, absl::StrCat(path, ".lora_A.weight"));
    const size_t b = IndexOf(factors, absl::StrCat(path, ".lora_B.weight"));
    if (a == factors.weights.size() || b == factors.weights.size()) return whole.read(index, into);
    LowRank adapter{.scale = scale, .inputs_first = inputs_first};
    TDOCK_ASSIGN_OR_RETURN(adapter.a, ReadWeight(factors, a, std::nullopt));
    TDOCK_ASSIGN_OR_RETURN(adapter.b, ReadWeight(factors, b, std::nullopt));
    return ReadAdapted([&](const at::Tensor& to) { return whole.read(index, to); }, adapter, into);
  };
  return source;
}

}  // namespace

bool HasSplitWeights(const State& texts) {
  const auto where = texts.texts().find(kWeightsIn);
  return where != texts.texts().end() && where->second == kInParts;
}

absl::StatusOr<WeightSource> OpenSplitWeights(Env& env, const std::string& folder, const State& texts,
                                              const std::string& base) {
  TDOCK_ASSIGN_OR_RETURN(const std::optional<model::LoraConfig> lora, LoraOf(texts));
  TDOCK_ASSIGN_OR_RETURN(const model::ModelConfig config, ConfigIn(env, folder));
  // Shapes without memory, and which weights are numbers of which parameter.
  model::Decoder outline = model::Decoder::Uninitialised(config, at::kMeta);
  if (!lora) return OpenNamed(env, folder, outline.NamedWeights(), outline.parameters());
  if (config.head == model::Head::kValue) {
    return absl::UnimplementedError(
        absl::StrCat(EscapeUnprintable(folder), ": parts of adapters beside a value head are not merged"));
  }
  if (base.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(EscapeUnprintable(folder),
                     " has parts of adapters: give the model that they adapt, model.path of the run, with --base"));
  }
  TDOCK_RETURN_IF_ERROR(Annotate(outline.AddAdapters(*lora, 0), folder));
  outline.SetTrainable(true);
  model::NamedTensors trained = outline.NamedAdapters();
  for (auto& whole : outline.SavedWeights(*lora)) trained.push_back(std::move(whole));
  TDOCK_ASSIGN_OR_RETURN(WeightSource factors, OpenNamed(env, folder, trained, outline.trainable()));
  TDOCK_ASSIGN_OR_RETURN(const WeightSource whole, OpenModelFolder(env, base));
  const bool inputs_first = model::StoresInputsFirst(config.architecture);
  TDOCK_RETURN_IF_ERROR(CheckFactorsFit(whole, factors, inputs_first, base));
  return WithFactors(whole, std::move(factors), lora->scale(), inputs_first);
}

}  // namespace tdock::trainer
