#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "core/base/testing/fails.h"
#include "core/base/testing/limited_env.h"
#include "model/decoder/adapter_files.h"
#include "model/decoder/checkpoint.h"
#include "model/decoder/testing/models.h"
#include "trainer/checkpoint/checkpoint_folder.h"
#include "trainer/checkpoint/state_files.h"
#include "trainer/merge/compare_sources.h"
#include "trainer/merge/merged_folder.h"
#include "trainer/merge/open_source.h"
#include "trainer/merge/own_sources.h"

namespace tdock::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string NewFolder() {
  std::string path = testing::TempDir() + "merge_XXXXXX";
  return ::mkdtemp(path.data());
}

// The parameters of a decoder, flat, in parts of three ranks, as those of a run with actor.zero_stage=3.
std::string SaveInParts(const model::Decoder& decoder, int64_t from, int64_t ranks = 3) {
  Env& env = Env::Real();
  const CheckpointFolder folder(env, NewFolder());
  CheckpointFolder writer(env, folder.path());
  const Manifest head{.place = {1, 0}, .saved = absl::FromUnixSeconds(1), .metrics = {}, .files = {}};
  const absl::Status written = writer.Write(head, [&](const std::string& path) -> absl::Status {
    TDOCK_RETURN_IF_ERROR(model::SaveConfig(env, path, decoder));
    for (int64_t rank = 0; rank < ranks; ++rank) {
      State state;
      state.SetText("weights_in", "parts");
      for (size_t i = 0; i < decoder.parameters().size(); ++i) {
        const at::Tensor flat = decoder.parameters()[i].detach().reshape({-1});
        const int64_t share = (flat.numel() + ranks - 1) / ranks, begin = std::min(rank * share, flat.numel());
        const int64_t size = std::min(share, flat.numel() - begin);
        if (size == 0 || (rank > 0 && i == static_cast<size_t>(from))) continue;
        state.SetPart(absl::StrCat("stages/actor/weights/", i), begin, flat.numel(),
                      flat.narrow(0, begin, size).contiguous());
        state.SetPart(absl::StrCat("stages/actor/optimizer/weights/", i), begin, flat.numel(), at::zeros({size}));
      }
      TDOCK_RETURN_IF_ERROR(rank == 0
                                ? WriteState(env, path, state)
                                : WriteRankState(env, path, static_cast<int>(rank), static_cast<int>(ranks), state));
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(written, absl::OkStatus());
  return folder.path();
}

std::vector<std::string> Differences(const WeightSource& one, const WeightSource& other) {
  const auto differences = CompareSources(Env::Real(), one, other, std::nullopt, [](const std::string&) {});
  EXPECT_TRUE(differences.ok()) << differences.status();
  return differences.ok() ? *differences : std::vector<std::string>{"an error"};
}

TEST(SplitWeights, AreTheModelForEveryKindOfDecoder) {
  for (const model::ModelConfig& config : model::TinyConfigs()) {
    const model::Decoder decoder = model::TinyDecoder(config, 7, at::kCPU);
    const std::string whole = NewFolder();
    ASSERT_EQ(model::SaveCheckpoint(Env::Real(), whole, decoder), absl::OkStatus());
    const std::string parts = SaveInParts(decoder, -1);
    const auto source = OpenCheckpoint(Env::Real(), JoinPath(parts, "step-000001"), "");
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_THAT(Differences(*source, *OpenModelFolder(Env::Real(), whole)), IsEmpty()) << Name(config.architecture);
  }
}

TEST(SplitWeights, NumbersThatNoRankHasAreNamed) {
  const model::Decoder decoder =
      model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/false), 7, at::kCPU);
  const std::string parts = SaveInParts(decoder, 3);
  EXPECT_THAT(OpenCheckpoint(Env::Real(), JoinPath(parts, "step-000001"), "").status(),
              Fails(absl::StatusCode::kInvalidArgument, {"stages/actor/weights/3"}));
}

// A model folder, and adapters of it with factors that change something.
struct Adapted {
  std::string base = NewFolder(), adapters = NewFolder(), merged = NewFolder();
};

Adapted SaveAdapted(const model::ModelConfig& config, const std::vector<std::string>& modules = {}) {
  Adapted saved;
  at::NoGradGuard no_grad;
  model::Decoder decoder = model::TinyDecoder(config, 3, at::kCPU);
  EXPECT_EQ(model::SaveCheckpoint(Env::Real(), saved.base, decoder), absl::OkStatus());
  const model::LoraConfig lora{.rank = 3, .alpha = 5, .saved = modules};
  EXPECT_EQ(decoder.AddAdapters(lora, 1), absl::OkStatus());
  for (const auto& [name, factor] : decoder.NamedAdapters()) factor.uniform_(-1, 1);
  for (const auto& [name, weight] : decoder.SavedWeights(lora)) weight.uniform_(-1, 1);
  EXPECT_EQ(model::SaveAdapters(Env::Real(), saved.adapters, decoder, saved.base), absl::OkStatus());
  EXPECT_EQ(model::SaveCheckpoint(Env::Real(), saved.merged, decoder.Merged()), absl::OkStatus());
  return saved;
}

TEST(Adapters, AreMergedToTheBitForEveryKindOfDecoder) {
  for (const model::ModelConfig& config : model::TinyConfigs()) {
    const Adapted saved = SaveAdapted(config);
    const auto source = OpenSource(Env::Real(), saved.adapters);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_THAT(Differences(*source, *OpenModelFolder(Env::Real(), saved.merged)), IsEmpty());
    EXPECT_THAT(Differences(*source, *OpenModelFolder(Env::Real(), saved.base)), testing::SizeIs(1));
  }
}

TEST(MergedFolder, AppearsWholeOrNotAtAllOnAFullDisk) {
  const std::string whole = NewFolder(), parent = NewFolder(), target = JoinPath(parent, "model");
  const model::Decoder decoder =
      model::TinyDecoder(model::TinyConfig(model::Architecture::kQwen2, /*tied_head=*/false), 7, at::kCPU);
  ASSERT_EQ(model::SaveCheckpoint(Env::Real(), whole, decoder), absl::OkStatus());
  const auto source = OpenSource(Env::Real(), whole);
  ASSERT_TRUE(source.ok()) << source.status();
  MergeOptions options{.max_file_bytes = 2000};
  size_t kept = 0, most_kept = 0;
  int64_t rounds = 0;
  for (;; ++rounds) {
    ASSERT_LT(rounds, 100);
    LimitedEnv env(Env::Real(), 9000);
    const absl::Status status = WriteMergedFolder(env, *source, target, options, &kept);
    most_kept = std::max(most_kept, kept);
    if (status.ok()) break;
    EXPECT_THAT(status, Fails(absl::StatusCode::kResourceExhausted, {"No space left", target, "same command"}));
    EXPECT_FALSE(Env::Real().Exists(target));
    EXPECT_FALSE(Env::Real().Exists(JoinPath(parent, ".model.merging/config.json")));
  }
  EXPECT_GT(rounds, 1);
  EXPECT_GT(most_kept, 3u);
  EXPECT_THAT(Differences(*source, *OpenModelFolder(Env::Real(), target)), IsEmpty());
  EXPECT_THAT(*Env::Real().List(parent), ElementsAre("model"));
  EXPECT_THAT(WriteMergedFolder(Env::Real(), *source, target, options),
              Fails(absl::StatusCode::kAlreadyExists, {target}));
}

TEST(MergedFolder, FilesOfAnotherMergeAreNotKept) {
  const std::string whole = NewFolder(), parent = NewFolder(), target = JoinPath(parent, "model");
  const model::Decoder decoder =
      model::TinyDecoder(model::TinyConfig(model::Architecture::kQwen2, /*tied_head=*/false), 7, at::kCPU);
  ASSERT_EQ(model::SaveCheckpoint(Env::Real(), whole, decoder), absl::OkStatus());
  const auto source = OpenSource(Env::Real(), whole);
  LimitedEnv full(Env::Real(), 9000);
  size_t kept = 0;
  ASSERT_FALSE(WriteMergedFolder(full, *source, target, {.max_file_bytes = 2000}).ok());
  const MergeOptions other{.dtype = DType::kBF16, .max_file_bytes = 2000};
  ASSERT_EQ(WriteMergedFolder(Env::Real(), *source, target, other, &kept), absl::OkStatus());
  EXPECT_EQ(kept, 0u);
  const auto merged = OpenModelFolder(Env::Real(), target);
  for (const model::NamedInfo& weight : merged->weights) EXPECT_EQ(weight.info.dtype, DType::kBF16);
  EXPECT_THAT(*Env::Real().ReadFile(JoinPath(target, "config.json")), HasSubstr(R"("torch_dtype": "bfloat16")"));
}

TEST(MergedFolder, FilesOfAdaptersOfAnotherStrengthAreNotKept) {
  Env& env = Env::Real();
  const Adapted saved = SaveAdapted(model::TinyConfig(model::Architecture::kQwen2, /*tied_head=*/false));
  const std::string target = JoinPath(NewFolder(), "model"), path = JoinPath(saved.adapters, "adapter_config.json");
  LimitedEnv full(env, 9000);
  ASSERT_FALSE(WriteMergedFolder(full, *OpenSource(env, saved.adapters), target, {.max_file_bytes = 2000}).ok());
  std::string config = *env.ReadFile(path);
  const size_t at = config.find("\"lora_alpha\": 5");
  ASSERT_NE(at, std::string::npos) << config;
  config.replace(at, 15, "\"lora_alpha\": 7");
  const auto changed = std::filesystem::last_write_time(path);
  ASSERT_EQ(WriteFileAtomically(env, path, config), absl::OkStatus());
  std::filesystem::last_write_time(path, changed);  // as a restored copy has it
  size_t kept = 1;
  const auto source = OpenSource(env, saved.adapters);
  ASSERT_EQ(WriteMergedFolder(env, *source, target, {.max_file_bytes = 2000}, &kept), absl::OkStatus());
  EXPECT_EQ(kept, 0u);
  EXPECT_THAT(Differences(*source, *OpenModelFolder(env, target)), IsEmpty());
}

TEST(Adapters, ModulesThatWereTrainedWholeReplaceThoseOfTheBase) {
  const Adapted saved =
      SaveAdapted(model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/false), {"norm", "lm_head"});
  const auto source = OpenSource(Env::Real(), saved.adapters);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(Differences(*source, *OpenModelFolder(Env::Real(), saved.merged)), IsEmpty());
}

TEST(Adapters, ATrainedHeadOfValuesIsNotLost) {
  Env& env = Env::Real();
  model::ModelConfig config = model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/false);
  const std::string base = NewFolder(), adapters = NewFolder();
  ASSERT_EQ(model::SaveCheckpoint(env, base, model::TinyDecoder(config, 3, at::kCPU)), absl::OkStatus());
  config.head = model::Head::kValue;
  model::Decoder critic = model::TinyDecoder(config, 3, at::kCPU);
  ASSERT_EQ(critic.AddAdapters({.rank = 3, .alpha = 5}, 1), absl::OkStatus());
  ASSERT_EQ(model::SaveAdapters(env, adapters, critic, base), absl::OkStatus());
  EXPECT_THAT(OpenSource(env, adapters).status(), Fails(absl::StatusCode::kUnimplemented, {base, "score.weight"}));
}

// A checkpoint of one rank with the factors of adapters in parts.
std::string SaveFactorsInParts(const model::Decoder& decoder) {
  Env& env = Env::Real();
  CheckpointFolder writer(env, NewFolder());
  const Manifest head{.place = {1, 0}, .saved = absl::FromUnixSeconds(1), .metrics = {}, .files = {}};
  EXPECT_EQ(writer.Write(head,
                         [&](const std::string& path) -> absl::Status {
                           TDOCK_RETURN_IF_ERROR(model::SaveConfig(env, path, decoder));
                           State state;
                           state.SetText("weights_in", "parts");
                           state.SetText("fingerprint/model.lora_rank", "3");
                           state.SetText("fingerprint/model.lora_alpha", "5");
                           state.SetText("fingerprint/model.modules_to_save",
                                         absl::StrCat("\"", absl::StrJoin(decoder.lora()->saved, ","), "\""));
                           const std::vector<at::Tensor> trained = decoder.trainable();
                           for (size_t i = 0; i < trained.size(); ++i) {
                             const at::Tensor flat = trained[i].detach().reshape({-1});
                             state.SetPart(absl::StrCat("stages/actor/weights/", i), 0, flat.numel(), flat);
                           }
                           return WriteState(env, path, state);
                         }),
            absl::OkStatus());
  return JoinPath(writer.path(), "step-000001");
}

TEST(SplitAdapters, OfAnotherModelThanTheBaseAreRefused) {
  Env& env = Env::Real();
  const auto config = model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/false);
  const auto folder_of = [&](const model::ModelConfig& of) {
    const std::string folder = NewFolder();
    EXPECT_EQ(model::SaveCheckpoint(env, folder, model::TinyDecoder(of, 3, at::kCPU)), absl::OkStatus());
    return folder;
  };
  model::Decoder decoder = model::TinyDecoder(config, 3, at::kCPU);
  ASSERT_EQ(decoder.AddAdapters({.rank = 3, .alpha = 5, .saved = {"norm"}}, 1), absl::OkStatus());
  decoder.SetTrainable(true);
  {
    at::NoGradGuard no_grad;
    for (at::Tensor tensor : decoder.trainable()) tensor.add_(0.5);
  }
  const std::string factors = SaveFactorsInParts(decoder), whole = NewFolder();
  const auto merged = OpenCheckpoint(env, factors, folder_of(config));
  ASSERT_TRUE(merged.ok()) << merged.status();
  ASSERT_EQ(model::SaveCheckpoint(env, whole, decoder.Merged()), absl::OkStatus());
  EXPECT_THAT(Differences(*merged, *OpenModelFolder(env, whole)), IsEmpty());
  model::ModelConfig shallow = config, wide = config;
  shallow.num_layers = 1;
  wide.intermediate_size *= 2;
  EXPECT_THAT(OpenCheckpoint(env, factors, folder_of(shallow)).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"model.layers.1.", "lacks"}));
  EXPECT_THAT(OpenCheckpoint(env, factors, folder_of(wide)).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"not fit", "mlp"}));
}

TEST(Differences, AreAlsoFilesOfTheTokenizerThatOneFolderLacks) {
  Env& env = Env::Real();
  const model::Decoder decoder =
      model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/true), 3, at::kCPU);
  std::vector<WeightSource> sources;
  for (const bool whole : {true, false}) {
    const std::string folder = NewFolder();
    ASSERT_EQ(model::SaveCheckpoint(env, folder, decoder), absl::OkStatus());
    ASSERT_EQ(WriteFileAtomically(env, JoinPath(folder, "tokenizer.json"), "{}"), absl::OkStatus());
    if (whole) {
      ASSERT_EQ(WriteFileAtomically(env, JoinPath(folder, "chat_template.jinja"), "x"), absl::OkStatus());
    }
    sources.push_back(*OpenModelFolder(env, folder));
  }
  EXPECT_THAT(Differences(sources[0], sources[1]), ElementsAre(HasSubstr("lacks chat_template.jinja")));
  EXPECT_THAT(Differences(sources[1], sources[0]), ElementsAre(HasSubstr("lacks chat_template.jinja")));
  EXPECT_THAT(Differences(sources[0], sources[0]), IsEmpty());
}

TEST(MergedFolder, IsKeptAsideIfItsPlaceIsTakenAtTheEnd) {
  Env& env = Env::Real();
  const std::string whole = NewFolder(), parent = NewFolder(), target = JoinPath(parent, "model");
  const model::Decoder decoder =
      model::TinyDecoder(model::TinyConfig(model::Architecture::kQwen2, /*tied_head=*/false), 7, at::kCPU);
  ASSERT_EQ(model::SaveCheckpoint(env, whole, decoder), absl::OkStatus());
  const auto source = OpenSource(env, whole);
  MergeOptions options{.max_file_bytes = 2000};
  size_t files = 0;
  options.progress = [&](const MergeProgress& progress) {
    files = progress.files;
    if (progress.files_done < progress.files) return;
    EXPECT_EQ(env.CreateFolders(JoinPath(target, "of another")), absl::OkStatus());
    size_t kept = 0;
    const absl::Status beside = WriteMergedFolder(env, *source, JoinPath(parent, "x/../model"), {}, &kept);
    EXPECT_EQ(beside.code(), absl::StatusCode::kAlreadyExists) << beside;
  };
  const absl::Status failed = WriteMergedFolder(env, *source, target, options);
  EXPECT_FALSE(failed.ok());
  EXPECT_THAT(failed.message(), Mentions({target, "same command"}));
  ASSERT_EQ(env.RemoveAll(target), absl::OkStatus());
  size_t kept = 0;
  ASSERT_EQ(WriteMergedFolder(env, *source, target, {.max_file_bytes = 2000}, &kept), absl::OkStatus());
  EXPECT_EQ(kept, files);
  EXPECT_GT(files, 3u);
  EXPECT_THAT(*env.List(parent), ElementsAre("model"));
  EXPECT_FALSE(env.Exists(JoinPath(target, "merge.json")));
  EXPECT_FALSE(env.Exists(JoinPath(target, "merge.lock")));
}

TEST(MergedFolder, OfMoreFilesThanCanBeReadIsNotBegun) {
  std::vector<model::NamedInfo> weights;
  for (int i = 0; i < 10'001; ++i) weights.push_back({absl::StrCat("w", i), {DType::kF32, {1}}});
  WeightSource source{.what = "a model"};
  source.weights = std::move(weights);
  source.read = [](size_t, const at::Tensor&) { return absl::OkStatus(); };
  const std::string parent = NewFolder();
  EXPECT_THAT(WriteMergedFolder(Env::Real(), source, JoinPath(parent, "model"), {.max_file_bytes = 1}),
              Fails(absl::StatusCode::kInvalidArgument, {"10001", "at most 10000", "larger"}));
  EXPECT_THAT(*Env::Real().List(parent), IsEmpty());
}

// A source of one weight with these numbers.
WeightSource OneWeight(const std::string& config_folder, const at::Tensor& numbers) {
  WeightSource source{.what = "numbers"};
  source.weights = {{"w", {DType::kF32, numbers.sizes().vec()}}};
  source.read = [numbers](size_t, const at::Tensor& into) {
    into.copy_(numbers);
    return absl::OkStatus();
  };
  source.config_folder = config_folder;
  return source;
}

TEST(Differences, OfALargeWeightAreCountedInAllOfIt) {
  Env& env = Env::Real();
  const std::string folder = NewFolder();
  ASSERT_EQ(WriteFileAtomically(env, JoinPath(folder, "config.json"), "{}"), absl::OkStatus());
  const at::Tensor one = at::zeros({3, 100'000}), other = one.clone();
  other[0][99'999] = 2;  // in different pieces
  other[1][50'000] = -5;
  other[2][99'999] = 1;
  EXPECT_THAT(Differences(OneWeight(folder, one), OneWeight(folder, other)),
              ElementsAre("weight w: at [0, 99999] 0, and 2 (3 of 300000 numbers differ, by 5 at most)"));
  other[2][7] = std::nan("");
  EXPECT_THAT(Differences(OneWeight(folder, one), OneWeight(folder, other)), ElementsAre(HasSubstr("by nan at most")));
}

TEST(Tying, AHeadThatShouldBeTheEmbeddingIsLeftOutOrItsDifferenceNamed) {
  Env& env = Env::Real();
  const std::string folder = NewFolder();
  model::Decoder decoder =
      model::TinyDecoder(model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/false), 7, at::kCPU);
  ASSERT_EQ(model::SaveCheckpoint(env, folder, decoder), absl::OkStatus());
  const std::string path = JoinPath(folder, "config.json");
  std::string config = *env.ReadFile(path);
  const size_t at = config.find(R"("tie_word_embeddings": false)");
  ASSERT_NE(at, std::string::npos);
  config.replace(at, 28, R"("tie_word_embeddings": true)");
  ASSERT_EQ(WriteFileAtomically(env, path, config), absl::OkStatus());
  EXPECT_THAT(OpenSource(env, folder).status(),
              Fails(absl::StatusCode::kInvalidArgument, {"tie_word_embeddings: true", "at [0, 0]"}));
  at::NoGradGuard no_grad;
  const model::NamedTensors weights = decoder.NamedWeights();
  weights.back().second.copy_(weights.front().second);  // the head
  ASSERT_EQ(model::SaveCheckpoint(env, folder, decoder), absl::OkStatus());
  ASSERT_EQ(WriteFileAtomically(env, path, config), absl::OkStatus());
  const auto source = OpenSource(env, folder);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->weights.size(), weights.size() - 1);
  EXPECT_EQ(IndexOf(*source, "lm_head.weight"), source->weights.size());
}

TEST(Names, AreInTheOrderOfTheirNumbers) {
  std::vector<std::string> names = {"layers.10.a", "layers.2.b", "layers.2.a", "layers.2", "a"};
  std::sort(names.begin(), names.end(), NameBefore);
  EXPECT_THAT(names, ElementsAre("a", "layers.2", "layers.2.a", "layers.2.b", "layers.10.a"));
}

TEST(FileSize, IsBytesOrHasAUnit) {
  EXPECT_EQ(*ParseFileSize("5GB"), 5'000'000'000u);
  EXPECT_EQ(*ParseFileSize("2gib"), uint64_t{2} << 30);
  EXPECT_EQ(*ParseFileSize("123"), 123u);
  for (const char* wrong : {"", "0", "GB", "-1GB", "1.5GB", "99999999999999999999", "9999999999GB"}) {
    EXPECT_THAT(ParseFileSize(wrong).status(), Fails(absl::StatusCode::kInvalidArgument, {wrong})) << wrong;
  }
}

}  // namespace
}  // namespace tdock::trainer
