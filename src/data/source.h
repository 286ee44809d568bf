// Samples by index.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "data/encode.h"
#include "text/content_hash.h"

namespace tdock::data {

// Thread-safe.
template <class T>
class Source {
 public:
  virtual ~Source() = default;

  virtual int64_t size() const = 0;

  // The samples of `indexes`, each below size(), in their order: each is a sample or the reason why there is none.
  // InvalidArgument is a bad record, which may be skipped; any other error is not about the record.
  virtual std::vector<absl::StatusOr<OrSkip<T>>> Load(std::span<const int64_t> indexes) const = 0;

  // False if the sample is of the same record as the one before it.
  virtual bool BeginsRecord(int64_t) const { return true; }

  // A hash of everything that determines the samples: sources with the same hash give the same samples.
  virtual text::ContentHash content() const = 0;
};

// Some of the samples of another source. Thread-safe.
template <class T>
class Subset final : public Source<T> {
 public:
  Subset(std::shared_ptr<const Source<T>> whole, std::vector<int64_t> indexes) : Subset(*whole, std::move(indexes)) {
    owned_ = std::move(whole);
  }
  // `whole` must outlive it.
  Subset(const Source<T>& whole, std::vector<int64_t> indexes) : whole_(whole), indexes_(std::move(indexes)) {
    text::ContentHasher hasher;
    hasher.AddField(text::Hex(whole.content()));
    hasher.AddField({reinterpret_cast<const char*>(indexes_.data()), indexes_.size() * sizeof(int64_t)});
    content_ = hasher.Value();
  }

  int64_t size() const override { return static_cast<int64_t>(indexes_.size()); }
  std::vector<absl::StatusOr<OrSkip<T>>> Load(std::span<const int64_t> indexes) const override {
    std::vector<int64_t> of_whole;
    of_whole.reserve(indexes.size());
    for (const int64_t index : indexes) of_whole.push_back(InWhole(index));
    return whole_.Load(of_whole);
  }
  text::ContentHash content() const override { return content_; }

  // The number of a sample in the other source.
  int64_t InWhole(int64_t index) const { return indexes_[static_cast<size_t>(index)]; }

 private:
  std::shared_ptr<const Source<T>> owned_;  // null where `whole_` is another's
  const Source<T>& whole_;
  const std::vector<int64_t> indexes_;
  text::ContentHash content_;
};

}  // namespace tdock::data
