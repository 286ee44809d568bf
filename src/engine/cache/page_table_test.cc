#include "engine/cache/page_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "core/base/rng.h"

namespace tdock::engine {
namespace {

using testing::ElementsAre;

std::vector<int32_t> Pages(const PageTable& table, int64_t sequence) {
  const auto pages = table.pages(sequence);
  return {pages.begin(), pages.end()};
}

TEST(PageTable, GivesPagesAsTheyAreNeededAndTakesThemBack) {
  PageTable table(3, 4);
  const int64_t a = table.Add(), b = table.Add();
  EXPECT_TRUE(table.Reserve(a, 4));
  EXPECT_TRUE(table.Reserve(a, 3)) << "has it";
  EXPECT_TRUE(table.Reserve(b, 5));
  EXPECT_EQ(table.pages(a).size(), 1u);
  EXPECT_EQ(table.pages(b).size(), 2u);
  EXPECT_FALSE(table.Reserve(a, 5));
  EXPECT_EQ(table.pages(a).size(), 1u) << "nothing has changed";
  table.Remove(b);
  EXPECT_EQ(table.free(), 2);
  EXPECT_TRUE(table.Reserve(a, 12));
  EXPECT_EQ(table.free(), 0);
}

TEST(PageTable, SharesFullPagesOfTheSameBeginning) {
  PageTable table(10, 2);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5};
  const int64_t a = table.Add();
  ASSERT_TRUE(table.Reserve(a, 5));
  const int64_t before = table.Add();
  EXPECT_EQ(table.Share(before, tokens), 0) << "nobody has said what is in them";
  table.Publish(a, tokens);
  const int64_t b = table.Add(), c = table.Add(), d = table.Add();
  EXPECT_EQ(table.Share(b, tokens), 4);
  EXPECT_THAT(Pages(table, b), ElementsAre(table.pages(a)[0], table.pages(a)[1]));
  EXPECT_EQ(table.Share(c, std::vector<int32_t>{1, 2, 3, 9, 5}), 2);
  EXPECT_EQ(table.Share(d, std::vector<int32_t>{3, 4, 1, 2}), 0) << "pages that follow others mean something else";
  EXPECT_EQ(table.free(), 7) << "a page is held once";
}

TEST(PageTable, KeepsWhatWasPublishedUntilPagesRunOut) {
  PageTable table(4, 2);
  const std::vector<int32_t> old = {1, 2, 3, 4}, fresh = {5, 6};
  const int64_t a = table.Add();
  ASSERT_TRUE(table.Reserve(a, 4));
  table.Publish(a, old);
  table.Remove(a);
  EXPECT_EQ(table.kept(), 2);
  const int64_t b = table.Add();
  ASSERT_TRUE(table.Reserve(b, 6)) << "three pages: two are free, one is given up";
  EXPECT_EQ(table.kept(), 1);
  const int64_t c = table.Add();
  EXPECT_EQ(table.Share(c, old), 2) << "the later page was given up first";
  EXPECT_FALSE(table.Reserve(c, 4)) << "nothing is left to give up";
  table.Publish(b, fresh);
  table.Forget();
  const int64_t d = table.Add();
  EXPECT_EQ(table.Share(d, fresh), 0);
  table.Remove(b);
  EXPECT_EQ(table.kept(), 0);
  EXPECT_EQ(table.free(), 3);
}

TEST(PageTable, ForksShareFullPagesAndCopyTheLast) {
  PageTable table(5, 4);
  const int64_t a = table.Add();
  ASSERT_TRUE(table.Reserve(a, 11));
  const auto full = table.Fork(a, 8);
  ASSERT_TRUE(full.has_value());
  EXPECT_FALSE(full->copy.has_value());
  const auto part = table.Fork(a, 6);
  ASSERT_TRUE(part.has_value());
  ASSERT_TRUE(part->copy.has_value());
  EXPECT_EQ(part->copy->from, table.pages(a)[1]);
  EXPECT_THAT(Pages(table, part->sequence), ElementsAre(table.pages(a)[0], part->copy->to));
  ASSERT_TRUE(table.Reserve(full->sequence, 9));
  EXPECT_FALSE(table.Fork(a, 6).has_value()) << "no page for the copy";
  EXPECT_EQ(table.Unreachable(), 0);
}

// Everything at random: each token of a sequence must be on a page that says so, and a page belongs to those only whose
// tokens it has. `written` is what a cache would have in the pages: other numbers for each set of weights.
TEST(PageTable, NeverGivesAPageToTwoThatDiffer) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    constexpr int64_t kSize = 4;
    PageTable table(static_cast<int64_t>(4 + rng.Below(20)), kSize);
    std::map<int64_t, std::vector<int32_t>> tokens;  // of each sequence, all that are in its pages
    std::map<int64_t, int32_t> weights;              // with which each has begun
    int32_t served = 0;
    const auto number = [&](int64_t sequence, int32_t token) { return token + 2 * weights.at(sequence); };
    std::map<int32_t, std::vector<int32_t>> written;
    const auto write = [&](int64_t sequence, size_t begin) {
      const std::vector<int32_t>& all = tokens[sequence];
      for (size_t i = begin; i < all.size(); ++i) {
        std::vector<int32_t>& page = written[table.pages(sequence)[i / kSize]];
        page.resize(kSize);
        page[i % kSize] = number(sequence, all[i]);
      }
    };
    for (int step = 0; step < 200; ++step) {
      const uint64_t action = rng.Below(6);
      if (action == 0 || tokens.empty()) {
        std::vector<int32_t> wanted(1 + rng.Below(14));
        for (int32_t& token : wanted) token = static_cast<int32_t>(rng.Below(2));
        const int64_t added = table.Add();
        const int64_t shared = table.Share(added, wanted);
        ASSERT_EQ(shared % kSize, 0);
        if (!table.Reserve(added, static_cast<int64_t>(wanted.size()))) {
          table.Remove(added);
          continue;
        }
        tokens[added] = wanted;
        weights[added] = served;
        write(added, static_cast<size_t>(shared));
        table.Publish(added, wanted);
      } else {
        auto chosen = tokens.begin();
        std::advance(chosen, rng.Below(tokens.size()));
        const int64_t sequence = chosen->first;
        std::vector<int32_t>& all = chosen->second;
        if (action == 1) {
          table.Remove(sequence);
          tokens.erase(chosen);
        } else if (action == 2) {
          const auto length = static_cast<int64_t>(1 + rng.Below(all.size()));
          const auto forked = table.Fork(sequence, length);
          if (!forked) continue;
          if (forked->copy) {
            const std::vector<int32_t> copied = written[static_cast<int32_t>(forked->copy->from)];
            written[static_cast<int32_t>(forked->copy->to)] = copied;
          }
          tokens[forked->sequence].assign(all.begin(), all.begin() + length);
          weights[forked->sequence] = weights.at(sequence);
        } else if (action == 3 && rng.Below(20) == 0) {
          table.Forget();
          ++served;
        } else if (table.Reserve(sequence, static_cast<int64_t>(all.size()) + 1)) {
          all.push_back(static_cast<int32_t>(rng.Below(2)));
          write(sequence, all.size() - 1);
          if (rng.Below(2) == 0) table.Publish(sequence, all);
        }
      }
      for (const auto& [sequence, all] : tokens) {
        for (size_t i = 0; i < all.size(); ++i) {
          ASSERT_EQ(written[table.pages(sequence)[i / kSize]][i % kSize], number(sequence, all[i]))
              << "seed " << seed << " step " << step;
        }
      }
      ASSERT_EQ(table.Unreachable(), 0);
      std::set<int32_t> held;
      for (const auto& [sequence, all] : tokens)
        held.insert(table.pages(sequence).begin(), table.pages(sequence).end());
      ASSERT_EQ(table.free() + table.kept() + static_cast<int64_t>(held.size()), table.total());
    }
  }
}

}  // namespace
}  // namespace tdock::engine
