#include "data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "core/base/testing/fails.h"

namespace tdock::data {
namespace {

using testing::ElementsAre;

// Sample i is i; of every 10, one is bad, one incomplete and one overlong, where that is wished.
class Numbers final : public Source<int64_t> {
 public:
  explicit Numbers(int64_t size, bool sound = true) : size_(size), sound_(sound) {}
  int64_t size() const override { return size_; }
  std::vector<absl::StatusOr<OrSkip<int64_t>>> Load(std::span<const int64_t> indexes) const override {
    std::vector<absl::StatusOr<OrSkip<int64_t>>> samples;
    for (const int64_t index : indexes) {
      ++loaded_;
      if (!sound_ && index % 10 == 3) {
        samples.emplace_back(absl::InvalidArgumentError(absl::StrCat("f:", index, ": bad")));
      } else if (!sound_ && (index % 10 == 4 || index % 10 == 5)) {
        samples.emplace_back(index % 10 == 4 ? Skip::kIncomplete : Skip::kOverlong);
      } else {
        samples.emplace_back(index);
      }
    }
    return samples;
  }
  text::ContentHash content() const override { return {static_cast<uint64_t>(size_), sound_}; }
  int64_t loaded() const { return loaded_; }

 private:
  const int64_t size_;
  const bool sound_;
  mutable std::atomic<int64_t> loaded_ = 0;
};

using Batches = std::vector<std::vector<int64_t>>;

Batches Take(Loader<int64_t>& loader, int most = 1000) {
  Batches batches;
  while (static_cast<int>(batches.size()) < most) {
    auto batch = loader.Next();
    EXPECT_TRUE(batch.ok()) << batch.status();
    if (!batch.ok() || !*batch) break;
    batches.push_back(**std::move(batch));
  }
  return batches;
}

TEST(Loader, KeepsTheOrderOfTheSource) {
  const Numbers source(7);
  Loader<int64_t> whole(source, {.batch_size = 3, .shuffle = false, .drop_last = false, .epochs = 2});
  EXPECT_THAT(Take(whole), ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5), ElementsAre(6), ElementsAre(0, 1, 2),
                                       ElementsAre(3, 4, 5), ElementsAre(6)));
  Loader<int64_t> dropping(source, {.batch_size = 3, .shuffle = false, .drop_last = true, .epochs = 2});
  EXPECT_THAT(Take(dropping),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5), ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
}

TEST(Loader, ShufflesEachEpochAnew) {
  const Numbers source(1000);
  Loader<int64_t> loader(source, {.batch_size = 1000, .seed = 5, .epochs = 3});
  const Batches epochs = Take(loader);
  ASSERT_EQ(epochs.size(), 3u);
  for (const auto& epoch : epochs) {
    EXPECT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), 1000u);
    EXPECT_FALSE(std::is_sorted(epoch.begin(), epoch.end()));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  Loader<int64_t> same(source, {.batch_size = 1000, .seed = 5});
  EXPECT_EQ(Take(same, 3), epochs);
  Loader<int64_t> other(source, {.batch_size = 1000, .seed = 6});
  EXPECT_NE(Take(other, 3), epochs);
}

TEST(Loader, WorkersChangeNothing) {
  const Numbers source(1003, false);
  const auto options = [](int workers) {
    return LoaderOptions{.batch_size = 7, .epochs = 3, .workers = workers, .skip_bad_records = true};
  };
  Loader<int64_t> alone(source, options(0));
  const Batches expected = Take(alone);
  for (const int workers : {1, 2, 5}) {
    Loader<int64_t> loader(source, options(workers));
    EXPECT_EQ(Take(loader), expected);
    EXPECT_EQ(loader.position(), alone.position());
  }
}

TEST(Loader, HoldsABoundedNumberOfSamples) {
  const Numbers source(100'000);
  {
    Loader<int64_t> loader(source, {.batch_size = 1, .workers = 2});
    Take(loader, 10);
  }
  EXPECT_LE(source.loaded(), 128 * 6);
}

TEST(Loader, ResumesExactly) {
  const Numbers source(301, false);
  for (const bool drop_last : {false, true}) {
    const LoaderOptions options{
        .batch_size = 16, .drop_last = drop_last, .epochs = 3, .workers = 1, .skip_bad_records = true};
    Loader<int64_t> whole(source, options);
    const Batches expected = Take(whole);
    for (size_t stop = 0; stop <= expected.size(); ++stop) {
      Loader<int64_t> first(source, options);
      Batches batches = Take(first, static_cast<int>(stop));
      const auto position = LoaderPosition::FromText(first.position().ToText());
      ASSERT_TRUE(position.ok()) << position.status();
      Loader<int64_t> second(source, options);
      Take(second, 3);
      ASSERT_TRUE(second.Resume(*position).ok());
      for (auto& batch : Take(second)) batches.push_back(std::move(batch));
      ASSERT_EQ(batches, expected) << stop;
      EXPECT_EQ(second.position(), whole.position());
    }
  }
}

TEST(Loader, ResumesOnlyTheSameOrder) {
  const Numbers source(10);
  const Numbers other(11);
  const Loader<int64_t> loader(source, {.seed = 1});
  for (const auto& [from, seed, shuffle] :
       {std::tuple(&other, uint64_t{1}, true), std::tuple(&source, uint64_t{2}, true),
        std::tuple(&source, uint64_t{1}, false)}) {
    Loader<int64_t> different(*from, {.shuffle = shuffle, .seed = seed});
    EXPECT_EQ(different.Resume(loader.position()).code(), absl::StatusCode::kFailedPrecondition);
  }
  for (const char* text : {"", "loader1", "loader1 9223372036854775807 0 0 0 0 0 0 0 0", "loader2 0 0 0 0 0 0 0 0 0",
                           "loader1 -1 0 0 0 0 0 0 0 0", "loader1 0 0 0 0 0 0 0 0 x"}) {
    EXPECT_EQ(LoaderPosition::FromText(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(Loader, ABadRecordIsAnErrorUnlessSkipped) {
  const Numbers source(20, false);
  Loader<int64_t> strict(source, {.batch_size = 2, .shuffle = false, .epochs = 1});
  EXPECT_TRUE(strict.Next().ok());
  EXPECT_EQ(strict.Next().status().message(), "f:3: bad");
  EXPECT_EQ(strict.Next().status().message(), "f:3: bad");

  std::vector<std::string> reported;
  Loader<int64_t> lenient(source,
                          {.batch_size = 2,
                           .shuffle = false,
                           .epochs = 1,
                           .skip_bad_records = true,
                           .report = [&](const absl::Status& status) { reported.emplace_back(status.message()); }});
  EXPECT_THAT(Take(lenient), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 6), ElementsAre(7, 8), ElementsAre(9, 10),
                                         ElementsAre(11, 12), ElementsAre(16, 17), ElementsAre(18, 19)));
  EXPECT_THAT(reported, ElementsAre("f:3: bad", "f:13: bad"));
  EXPECT_EQ(lenient.position().counts,
            (LoaderCounts{.samples = 14, .bad = 2, .incomplete = 2, .overlong = 2, .truncated = 0}));
}

// Fails in another way than by a bad record.
class Broken final : public Source<int64_t> {
 public:
  int64_t size() const override { return 2; }
  std::vector<absl::StatusOr<OrSkip<int64_t>>> Load(std::span<const int64_t> indexes) const override {
    return std::vector<absl::StatusOr<OrSkip<int64_t>>>(indexes.size(), absl::UnavailableError("the disk is gone"));
  }
  text::ContentHash content() const override { return {}; }
};

TEST(Loader, AFileThatFailsIsNoBadRecord) {
  const Broken source;
  Loader<int64_t> loader(source, {.skip_bad_records = true});
  EXPECT_EQ(loader.Next().status().message(), "the disk is gone");
}

class Dropped final : public Source<int64_t> {
 public:
  int64_t size() const override { return 3; }
  std::vector<absl::StatusOr<OrSkip<int64_t>>> Load(std::span<const int64_t> indexes) const override {
    return std::vector<absl::StatusOr<OrSkip<int64_t>>>(indexes.size(), Skip::kOverlong);
  }
  text::ContentHash content() const override { return {}; }
};

TEST(Loader, AnEpochWithoutSamplesEndsAnEndlessLoader) {
  const Dropped source;
  Loader<int64_t> loader(source, {});
  EXPECT_THAT(loader.Next().status(),
              Fails(absl::StatusCode::kFailedPrecondition, {"3 records", "0 bad", "0 incomplete", "3 overlong"}));
}

TEST(Loader, AnEpochWithFewerSamplesThanABatchIsAnError) {
  const Numbers source(10, false);
  for (const int64_t epochs : {0, 2}) {
    Loader<int64_t> loader(source, {.batch_size = 8, .epochs = epochs, .skip_bad_records = true});
    EXPECT_THAT(loader.Next().status(),
                Fails(absl::StatusCode::kFailedPrecondition,
                      {"batch_size is 8", " 7 of", "10 records", "1 bad", "1 incomplete", "1 overlong", "drop_last"}));
  }
  Loader<int64_t> exact(source, {.batch_size = 7, .epochs = 2, .skip_bad_records = true});
  EXPECT_EQ(Take(exact).size(), 2u);
  Loader<int64_t> keeping(source, {.batch_size = 8, .drop_last = false, .epochs = 2, .skip_bad_records = true});
  EXPECT_EQ(Take(keeping).size(), 2u);
}

TEST(Loader, AnEpochWithoutABatchIsNoticedAfterAResumeAtItsBeginning) {
  const Numbers source(7);
  Loader<int64_t> first(source, {.batch_size = 7});
  EXPECT_TRUE(first.Next().ok());
  Loader<int64_t> second(source, {.batch_size = 8});
  ASSERT_TRUE(second.Resume(first.position()).ok());
  EXPECT_EQ(second.Next().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Loader, GoesOnAfterAnErrorWithoutLosingSamples) {
  const Numbers source(20, false);
  const LoaderOptions options{.batch_size = 2, .shuffle = false, .epochs = 1};
  Loader<int64_t> strict(source, options);
  Batches batches = Take(strict, 1);
  const LoaderPosition after_first = strict.position();
  EXPECT_FALSE(strict.Next().ok());
  EXPECT_EQ(strict.position(), after_first);
  LoaderOptions lenient_options = options;
  lenient_options.skip_bad_records = true;
  Loader<int64_t> lenient(source, lenient_options);
  ASSERT_TRUE(lenient.Resume(strict.position()).ok());
  EXPECT_THAT(Take(lenient, 1), ElementsAre(ElementsAre(2, 6)));
}

TEST(Subset, GivesTheSamplesChosen) {
  const Numbers source(10);
  const Subset<int64_t> subset(source, {7, 2, 5});
  Loader<int64_t> loader(subset, {.batch_size = 3, .shuffle = false, .epochs = 1});
  EXPECT_THAT(Take(loader), ElementsAre(ElementsAre(7, 2, 5)));
  EXPECT_NE(subset.content(), Subset<int64_t>(source, {7, 2}).content());
}

}  // namespace
}  // namespace tdock::data
