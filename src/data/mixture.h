// Several sources as one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status.h"
#include "data/source.h"

namespace tdock::data {

// `count` of the numbers 0 … size-1, in ascending order, chosen by the seed.
inline std::vector<int64_t> ChooseIndexes(int64_t size, int64_t count, uint64_t seed) {
  std::vector<int64_t> chosen(static_cast<size_t>(size));
  std::iota(chosen.begin(), chosen.end(), int64_t{0});
  Rng rng(seed);
  rng.Shuffle(std::span(chosen));
  chosen.resize(static_cast<size_t>(count));
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

// The samples of its parts, one part after the other, each as often as its weight says: with 2 twice, with 0.5 every
// second one, with 2.5 all twice and every second one once more. Which ones they are is chosen by the seed, once for
// all epochs; at least one sample of each part is there. Memory is 8 bytes for each that is chosen. Thread-safe.
template <class T>
class Mixture final : public Source<T> {
 public:
  struct Part {
    std::shared_ptr<const Source<T>> source;  // not empty
    double weight = 1;                        // above 0, at most 1e6
  };

  Mixture(std::vector<Part> parts, uint64_t seed) {
    text::ContentHasher hasher;
    for (Part& part : parts) {
      const int64_t size = part.source->size();
      TDOCK_CHECK(size > 0 && part.weight > 0 && part.weight <= 1e6, "a part has samples and a weight");
      Times times{.source = std::move(part.source), .size = size};
      times.whole = static_cast<int64_t>(part.weight);
      const double more = (part.weight - static_cast<double>(times.whole)) * static_cast<double>(size);
      const auto count = std::max<int64_t>(std::llround(more), times.whole == 0 ? 1 : 0);
      if (count > 0) times.chosen = ChooseIndexes(size, count, DeriveSeed(seed, parts_.size()));
      hasher.AddField(absl::StrCat(text::Hex(times.source->content()), " ", times.whole));
      hasher.AddField({reinterpret_cast<const char*>(times.chosen.data()), times.chosen.size() * sizeof(int64_t)});
      begins_.push_back(begins_.back() + times.whole * size + count);
      parts_.push_back(std::move(times));
    }
    content_ = hasher.Value();
  }

  int64_t size() const override { return begins_.back(); }
  text::ContentHash content() const override { return content_; }

  // The samples of a part are read together.
  std::vector<absl::StatusOr<OrSkip<T>>> Load(std::span<const int64_t> indexes) const override {
    std::vector<std::pair<size_t, size_t>> places;  // the part of an index, and its place among the indexes
    places.reserve(indexes.size());
    for (size_t i = 0; i < indexes.size(); ++i) {
      const auto after = std::upper_bound(begins_.begin(), begins_.end(), indexes[i]);
      places.emplace_back(static_cast<size_t>(after - begins_.begin()) - 1, i);
    }
    std::sort(places.begin(), places.end());
    std::vector<absl::StatusOr<OrSkip<T>>> samples(indexes.size());
    for (size_t begin = 0, end = 0; begin < places.size(); begin = end) {
      const size_t part = places[begin].first;
      std::vector<int64_t> of_part;
      for (; end < places.size() && places[end].first == part; ++end) {
        of_part.push_back(parts_[part].InSource(indexes[places[end].second] - begins_[part]));
      }
      std::vector<absl::StatusOr<OrSkip<T>>> loaded = parts_[part].source->Load(of_part);
      for (size_t i = 0; i < loaded.size(); ++i) samples[places[begin + i].second] = std::move(loaded[i]);
    }
    return samples;
  }

 private:
  struct Times {
    std::shared_ptr<const Source<T>> source;
    int64_t size = 0;
    int64_t whole = 0;                 // how often all of them come
    std::vector<int64_t> chosen = {};  // those that then come once more

    int64_t InSource(int64_t index) const {
      return index < whole * size ? index % size : chosen[static_cast<size_t>(index - whole * size)];
    }
  };

  std::vector<Times> parts_;
  std::vector<int64_t> begins_ = {0};  // of each part, and after the last
  text::ContentHash content_;
};

}  // namespace tdock::data
