#include "data/run_data.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "data/mixture.h"
#include "data/visit.h"

namespace tdock::data {
namespace {

using EncodedMixture = Mixture<EncodedSample>;
using EncodedSource = std::shared_ptr<const Source<EncodedSample>>;

// What each use of the seed is for.
enum SeedPurpose : uint64_t { kForWeights = 1, kForValidation };

uint64_t SeedFor(const DataConfig& config, SeedPurpose purpose) {
  return DeriveSeed(static_cast<uint64_t>(config.seed), purpose);
}

// Opens each of `paths` by itself: their columns may differ.
absl::StatusOr<std::vector<EncodedSource>> OpenEach(Env& env, DataConfig config, const std::vector<std::string>& paths,
                                                    Phase phase, const text::Tokenizer& tokenizer,
                                                    const std::string& model_folder, const DataLog& log,
                                                    std::optional<int32_t>* reply_end = nullptr) {
  std::vector<EncodedSource> sources;
  for (const std::string& path : paths) {
    config.path = path;
    TDOCK_ASSIGN_OR_RETURN(std::shared_ptr<const PhaseSamples> opened,
                           PhaseSamples::Open(env, config, phase, tokenizer, model_folder, log));
    log(absl::StrCat(EscapeUnprintable(path.empty() ? config.name : path), ": ", opened->size(), " samples of \"",
                     EscapeForMessage(opened->adapter().name), "\", ", DescribeAdapter(opened->adapter())));
    if (reply_end != nullptr && opened->reply_end()) *reply_end = opened->reply_end();
    sources.push_back(std::move(opened));
  }
  return sources;
}

// Moves the share data.val_share of the records of `train` from there to the result, each with all of its samples.
absl::StatusOr<std::vector<EncodedSource>> HoldOut(const DataConfig& config, std::vector<EncodedSource>& train,
                                                   std::vector<double>& weights) {
  int64_t size = 0, records = 0;
  for (const EncodedSource& source : train) {
    size += source->size();
    for (int64_t index = 0; index < source->size(); ++index) records += source->BeginsRecord(index) ? 1 : 0;
  }
  const auto count = std::max<int64_t>(std::llround(config.val_share * static_cast<double>(records)), 1);
  if (count >= records) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.val_share ", config.val_share, " leaves none of the ", size, " samples to train on"));
  }
  const std::vector<int64_t> chosen = ChooseIndexes(records, count, SeedFor(config, kForValidation));
  std::vector<EncodedSource> left, held;
  std::vector<double> weights_left;
  auto next = chosen.begin();
  int64_t record = -1;
  for (size_t i = 0; i < train.size(); ++i) {
    std::vector<int64_t> to_train, to_validate;
    for (int64_t index = 0; index < train[i]->size(); ++index) {
      if (train[i]->BeginsRecord(index)) ++record;
      while (next != chosen.end() && *next < record) ++next;
      const bool holds = next != chosen.end() && *next == record;
      (holds ? to_validate : to_train).push_back(index);
    }
    if (!to_validate.empty()) held.push_back(std::make_shared<Subset<EncodedSample>>(train[i], std::move(to_validate)));
    if (to_train.empty()) continue;
    left.push_back(std::make_shared<Subset<EncodedSample>>(train[i], std::move(to_train)));
    weights_left.push_back(weights[i]);
  }
  train = std::move(left);
  weights = std::move(weights_left);
  return held;
}

std::vector<EncodedMixture::Part> PartsOf(std::vector<EncodedSource> sources, std::span<const double> weights) {
  std::vector<EncodedMixture::Part> parts;
  for (size_t i = 0; i < sources.size(); ++i) {
    parts.push_back({.source = std::move(sources[i]), .weight = weights.empty() ? 1 : weights[i]});
  }
  return parts;
}

text::ContentHash HashOfIds(const EncodedSample& sample) {
  text::ContentHasher hasher;
  for (const std::vector<int32_t>* ids : {&sample.ids, &sample.rejected}) {
    hasher.AddField({reinterpret_cast<const char*>(ids->data()), ids->size() * sizeof(int32_t)});
  }
  return hasher.Value();
}

// As many samples of the training data are compared with those to validate with.
constexpr int64_t kMostCompared = 20'000;
constexpr absl::Duration kMostTime = absl::Seconds(10);

struct ValidationCounts {
  int64_t samples = 0;
  int64_t trained_on = 0;  // those that are also in the training data, as far as that was compared
  int64_t compared = 0;    // samples of the training data
};

// Checks that there are validation samples, and counts those that are also trained on.
absl::StatusOr<ValidationCounts> CountInBoth(const DataConfig& config, Phase phase,
                                             const Source<EncodedSample>& validation,
                                             const Source<EncodedSample>& train) {
  const auto threads = static_cast<int>(config.num_workers);
  const auto encoded_of = [](const absl::StatusOr<OrSkip<EncodedSample>>& sample) {
    return sample.ok() ? std::get_if<EncodedSample>(&*sample) : nullptr;
  };
  std::vector<text::ContentHash> hashes;
  TDOCK_ASSIGN_OR_RETURN(const LoaderCounts counts, VisitSamples(validation, threads, [&](const auto& sample) {
                           if (const auto* encoded = encoded_of(sample)) hashes.push_back(HashOfIds(*encoded));
                           return true;
                         }));
  if (counts.samples == 0) return Annotate(NoSampleError(RulesOf(config), phase, counts), "the validation data");
  std::sort(hashes.begin(), hashes.end());
  std::vector<bool> trained(hashes.size());
  std::vector<int64_t> indexes = SpreadIndexes(train.size());
  indexes.resize(static_cast<size_t>(std::min(train.size(), kMostCompared)));
  const absl::Time until = Clock::Real().Now() + kMostTime;
  int64_t compared = 0;
  const auto visited = VisitSamples(Subset(train, std::move(indexes)), threads, [&](const auto& sample) {
    ++compared;
    if (const auto* encoded = encoded_of(sample)) {
      const auto [begin, end] = std::equal_range(hashes.begin(), hashes.end(), HashOfIds(*encoded));
      std::fill(trained.begin() + (begin - hashes.begin()), trained.begin() + (end - hashes.begin()), true);
    }
    return Clock::Real().Now() < until;
  });
  TDOCK_RETURN_IF_ERROR(visited.status());
  return ValidationCounts{
      .samples = counts.samples, .trained_on = std::count(trained.begin(), trained.end(), true), .compared = compared};
}

}  // namespace

absl::StatusOr<RunData> OpenRunData(Env& env, const DataConfig& config, Phase phase, const text::Tokenizer& tokenizer,
                                    const std::string& model_folder, const DataLog& log) {
  TDOCK_ASSIGN_OR_RETURN(std::vector<double> weights, ParseWeights(config));
  const std::vector<std::string> paths =
      config.train_files.empty() ? std::vector<std::string>{config.path} : config.train_files;
  RunData data;
  TDOCK_ASSIGN_OR_RETURN(std::vector<EncodedSource> train,
                         OpenEach(env, config, paths, phase, tokenizer, model_folder, log, &data.reply_end));
  std::vector<EncodedSource> validation;
  if (!config.val_files.empty()) {
    DataConfig of_validation = config;
    of_validation.split = "validation";
    of_validation.phase_shares = "1";
    of_validation.phase_index = 0;
    TDOCK_ASSIGN_OR_RETURN(validation,
                           OpenEach(env, of_validation, config.val_files, phase, tokenizer, model_folder, log));
  } else if (config.val_share > 0) {
    TDOCK_ASSIGN_OR_RETURN(validation, HoldOut(config, train, weights));
  }
  data.train = std::make_unique<EncodedMixture>(PartsOf(std::move(train), weights), SeedFor(config, kForWeights));
  if (!validation.empty()) {
    data.validation = std::make_unique<EncodedMixture>(PartsOf(std::move(validation), {}), uint64_t{0});
    TDOCK_ASSIGN_OR_RETURN(const ValidationCounts counts, CountInBoth(config, phase, *data.validation, *data.train));
    const int64_t size = data.train->size();
    if (counts.trained_on > 0) {
      data.warnings.push_back(absl::StrCat(
          counts.trained_on, " of the ", counts.samples, " validation samples are also in the training data",
          counts.compared < size ? absl::StrCat(", of which ", counts.compared, " of ", size, " samples were compared")
                                 : ""));
    }
  }
  return data;
}

}  // namespace tdock::data
