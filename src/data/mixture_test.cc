#include "data/mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "core/base/testing/growth.h"
namespace tdock::data {
namespace {

using testing::ElementsAre;

// The numbers from `first` on.
class Range final : public Source<int64_t> {
 public:
  Range(int64_t first, int64_t size) : first_(first), size_(size) {}
  int64_t size() const override { return size_; }
  std::vector<absl::StatusOr<OrSkip<int64_t>>> Load(std::span<const int64_t> indexes) const override {
    std::vector<absl::StatusOr<OrSkip<int64_t>>> samples;
    for (const int64_t index : indexes) samples.emplace_back(first_ + index);
    return samples;
  }
  text::ContentHash content() const override { return {static_cast<uint64_t>(first_), static_cast<uint64_t>(size_)}; }

 private:
  const int64_t first_;
  const int64_t size_;
};

using Part = Mixture<int64_t>::Part;

Part Some(int64_t first, int64_t size, double weight = 1) {
  return {.source = std::make_shared<Range>(first, size), .weight = weight};
}

std::vector<int64_t> AllOf(const Source<int64_t>& source) {
  std::vector<int64_t> indexes(static_cast<size_t>(source.size()));
  std::iota(indexes.begin(), indexes.end(), 0);
  std::vector<int64_t> samples;
  for (const auto& sample : source.Load(indexes)) samples.push_back(std::get<int64_t>(*sample));
  return samples;
}

TEST(Mixture, PartsFollowOneAnother) {
  const Mixture<int64_t> mixture({Some(0, 3), Some(10, 1), Some(20, 2)}, 1);
  EXPECT_THAT(AllOf(mixture), ElementsAre(0, 1, 2, 10, 20, 21));
  const auto jumping = mixture.Load(std::vector<int64_t>{5, 0, 3, 0});
  ASSERT_EQ(jumping.size(), 4u);
  EXPECT_EQ(std::get<int64_t>(*jumping[0]), 21);
  EXPECT_EQ(std::get<int64_t>(*jumping[1]), 0);
  EXPECT_EQ(std::get<int64_t>(*jumping[2]), 10);
  EXPECT_EQ(std::get<int64_t>(*jumping[3]), 0);
}

TEST(Mixture, ASampleComesAsOftenAsItsPartWeighs) {
  const Mixture<int64_t> mixture({Some(0, 100, 2), Some(100, 100, 0.5), Some(200, 100, 1.25)}, 1);
  std::map<int64_t, int> times;
  for (const int64_t sample : AllOf(mixture)) ++times[sample];
  std::map<int, int> of_part[3];
  for (int64_t sample = 0; sample < 300; ++sample) ++of_part[sample / 100][times[sample]];
  EXPECT_EQ(of_part[0], (std::map<int, int>{{2, 100}}));
  EXPECT_EQ(of_part[1], (std::map<int, int>{{0, 50}, {1, 50}}));
  EXPECT_EQ(of_part[2], (std::map<int, int>{{1, 75}, {2, 25}}));
  EXPECT_EQ(mixture.size(), 200 + 50 + 125);
  EXPECT_EQ(Mixture<int64_t>({Some(0, 10, 0.001)}, 1).size(), 1);
}

TEST(Mixture, TheSeedChooses) {
  const auto of_seed = [](uint64_t seed) { return Mixture<int64_t>({Some(0, 100, 0.5)}, seed); };
  EXPECT_EQ(AllOf(of_seed(1)), AllOf(of_seed(1)));
  EXPECT_EQ(of_seed(1).content(), of_seed(1).content());
  EXPECT_NE(AllOf(of_seed(1)), AllOf(of_seed(2)));
  EXPECT_NE(of_seed(1).content(), of_seed(2).content());
  EXPECT_NE(Mixture<int64_t>({Some(0, 9, 2)}, 1).content(), Mixture<int64_t>({Some(0, 9)}, 1).content());
}

TEST(Mixture, ChosenIndexesAreDifferent) {
  const std::vector<int64_t> chosen = ChooseIndexes(50, 20, 3);
  EXPECT_EQ(std::set<int64_t>(chosen.begin(), chosen.end()).size(), 20u);
  EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
  EXPECT_GE(chosen.front(), 0);
  EXPECT_LT(chosen.back(), 50);
}

// As of a run with many files.
TEST(Mixture, CostsWhatItsSamplesCostHoweverManyPartsThereAre) {
  ExpectLinear(
      [](int64_t parts) {
        std::vector<Part> of;
        for (int64_t i = 0; i < parts; ++i) of.push_back(Some(i, 1));
        const Mixture<int64_t> mixture(std::move(of), 1);
        std::vector<int64_t> piece(100);
        for (int64_t begin = 0; begin + 100 <= parts; begin += 100) {
          std::iota(piece.begin(), piece.end(), begin);
          ASSERT_EQ(std::get<int64_t>(*mixture.Load(piece)[99]), begin + 99);
        }
      },
      10'000);
}

}  // namespace
}  // namespace tdock::data
