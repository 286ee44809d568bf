// Included by loops_body.h. Norms and rotations of rows.

// (x - mean) · scale · weight + bias, with scale = 1/√(Σ(x - mean)²/size + eps); the mean is 0 unless kCentred.
template <bool kCentred, class T>
NormFigures NormRow(const T* x, const NormParameters& p, T* y, int64_t size) {
  const auto total = static_cast<float>(size);
  NormFigures figures;
  if constexpr (kCentred) {
    Lanes sums = {};
    ForPlaces(
        size, [&](auto at) __attribute__((always_inline)) { sums += at.Read(x); });
    figures.mean = Sum(sums) / total;
  }
  Lanes squares = {};
  ForPlaces(
      size, [&](auto at) __attribute__((always_inline)) {
        const Lanes difference = at.Read(x, figures.mean) - figures.mean;
        squares += difference * difference;
      });
  figures.scale = 1.0F / std::sqrt(Sum(squares) / total + p.eps);
  ForPlaces(
      size, [&](auto at) __attribute__((always_inline)) {
        Lanes normed = (at.Read(x) - figures.mean) * figures.scale;
        if (p.weight != nullptr) normed *= at.Read(p.weight);
        if (p.bias != nullptr) normed += at.Read(p.bias);
        at.Write(normed, y);
      });
  return figures;
}

// With n = (x - mean)·scale and g = dy·weight: dx = scale·(g - mean(g) - n·mean(g·n)), where mean(g) is left out unless
// kCentred; dweight += dy·n, dbias += dy, where they are not null.
template <bool kCentred, class T>
void NormRowGradient(const T* x, const T* dy, const NormParameters& p, const NormFigures& figures, T* dx,
                     float* dweight, float* dbias, int64_t size) {
  const auto total = static_cast<float>(size);
  const float mean = figures.mean, scale = figures.scale;
  const auto of_normed = [&](auto at) __attribute__((always_inline)) {
    const Lanes g = at.Read(dy);
    return p.weight != nullptr ? g * at.Read(p.weight) : g;
  };
  Lanes sums = {}, products = {};
  ForPlaces(
      size, [&](auto at) __attribute__((always_inline)) {
        const Lanes g = of_normed(at);
        if (kCentred) sums += g;
        products += g * (at.Read(x, mean) - mean);
      });
  const float mean_g = Sum(sums) / total;
  const float mean_product = Sum(products) * scale / total;
  ForPlaces(
      size, [&](auto at) __attribute__((always_inline)) {
        const Lanes normed = (at.Read(x) - mean) * scale;
        if (dweight != nullptr) at.Write(at.Read(dweight) + at.Read(dy) * normed, dweight);
        if (dbias != nullptr) at.Write(at.Read(dbias) + at.Read(dy), dbias);
        const Lanes g = of_normed(at);
        at.Write((g - mean_g - normed * mean_product) * scale, dx);
      });
}

// Turns each pair (x[i], x[i + size/2]) by its angle, or, if direction is -1, back.
template <class T>
void RotateRow(const T* x, const float* cos, const float* sin, float direction, T* y, int64_t size) {
  const int64_t half = size / 2;
  ForPlaces(
      half, [&](auto at) __attribute__((always_inline)) {
        const Lanes first = at.Read(x), second = at.Read(x + half), c = at.Read(cos), s = at.Read(sin) * direction;
        at.Write(first * c - second * s, y);
        at.Write(second * c + first * s, y + half);
      });
}
