// Random numbers that are the same on every machine and with every version of the standard library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace tdock {

// One round of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): a bijection
// of 64-bit words that passes BigCrush when fed a counter.
constexpr uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// A seed for one purpose, derived from another seed: streams with different `purpose` are independent.
constexpr uint64_t DeriveSeed(uint64_t seed, uint64_t purpose) { return MixBits(MixBits(seed) ^ MixBits(~purpose)); }

// A uniformly random word as a number in [0, 1) with 53 bits.
constexpr double UnitInterval(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

// A stream of random numbers. Not thread-safe.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(MixBits(seed)) {}

  uint64_t Next() { return MixBits(state_ += 0x9e3779b97f4a7c15ULL); }

  double Uniform() { return UnitInterval(Next()); }

  // Uniform in [0, bound), without bias; `bound` > 0.
  uint64_t Below(uint64_t bound) {
    const uint64_t reject_below = (0 - bound) % bound;
    uint64_t bits = Next();
    while (bits < reject_below) bits = Next();
    return bits % bound;
  }

  // The Fisher-Yates shuffle.
  template <class T>
  void Shuffle(std::span<T> items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[Below(i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace tdock
