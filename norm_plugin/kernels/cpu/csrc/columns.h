// Norms over positions, with an optional layer-scale in front. Included inside the namespace
// of a level.

// Calls work(row, real) for the rows of a block, in their order: memory is read from one end to
// the other.
template <class T, class Work>
inline void each_row(const ColumnArgs<T> &a, int64_t block, Work work) {
  int64_t last = (block + 1) * kBlockRows;
  if (last > a.rows) last = a.rows;
  for (int64_t row = block * kBlockRows; row < last; ++row) work(row, !a.valid || a.valid[row]);
}

// Calls work(at, begin, n, rate) for each group of channels of a row: n from `begin` on, whose
// first number is number `at` of x; rate is 1 without a layer-scale.
template <class T, class Work>
inline void each_group(const ColumnArgs<T> &a, int64_t row, Work work) {
  const int64_t groups = a.rate ? a.groups : 1, n = a.channels / groups;
  for (int64_t group = 0; group < groups; ++group)
    work(row * a.channels + group * n, group * n, n, a.rate ? a.rate[row * groups + group] : T(1));
}

// Calls step(c, V) for all channels of a row.
template <class T, class Step>
inline void each_channel(const ColumnArgs<T> &a, Step step) {
  sweep<T>(a.channels, step);
}

template <class T>
inline T *block_sums(const ColumnArgs<T> &a, int64_t block, int64_t kinds) {
  T *sums = a.sums + block * kinds * a.channels;
  for (int64_t i = 0; i < kinds * a.channels; ++i) sums[i] = 0;
  return sums;
}

template <class V, class T>
inline void add(T *to, V v) {
  store<V>(to, load<V>(to) + v);
}

// The rate of each group of a row, found and kept.
template <class T>
inline void find_rates(const ColumnArgs<T> &a, int64_t row) {
  const int64_t n = a.channels / a.groups;
  for (int64_t group = 0; group < a.groups; ++group) {
    const T *x = a.x + row * a.channels + group * n;
    Sum<T> squares;
    sweep<T>(n, [&](int64_t i, auto v) {
      auto one = load<decltype(v)>(x + i);
      squares.add(one * one);
    });
    a.rate[row * a.groups + group] = 1 / root(squares.total() / n + T(a.eps));
  }
}

// sums (k = 3): with centring the block's mean, sum (u - mean)^2 and the number of rows in
// every entry; without it sum u, sum u^2 and nothing.
template <bool centre, class T>
void column_moments_of(const ColumnArgs<T> &a, int64_t block) {
  T *first = block_sums(a, block, 3), *second = first + a.channels, *pilot = second + a.channels;
  int64_t count = 0;
  each_row(a, block, [&](int64_t row, bool real) {
    if (a.rate) find_rates(a, row);  // at padding too, which a norm may map with its own rate
    if (!real) return;
    const bool is_first = count++ == 0;
    const T share = T(1) / count;
    each_group(a, row, [&](int64_t at, int64_t begin, int64_t n, T rate) {
      sweep<T>(n, [&](int64_t i, auto v) {
        using V = decltype(v);
        V u = load<V>(a.x + at + i) * rate;
        if constexpr (centre) {
          // Differences from the first row keep the digits that a common offset would cost. The
          // updates of Welford 1962 add no square that is later taken away: if the first row is
          // far from the others, neither digits nor, at 1e18, the range of float is lost.
          if (is_first) store<V>(pilot + begin + i, u);
          u -= load<V>(pilot + begin + i);
          const V before = load<V>(first + begin + i), mean = before + (u - before) * share;
          store<V>(first + begin + i, mean);
          add<V>(second + begin + i, V((u - before) * (u - mean)));
        } else {
          add<V>(first + begin + i, u);
          add<V>(second + begin + i, u * u);
        }
      });
    });
  });
  if (!centre || count == 0) return;
  const T rows = count;
  each_channel(a, [&](int64_t c, auto v) {
    using V = decltype(v);
    add<V>(first + c, load<V>(pilot + c));
    store<V>(pilot + c, V{} + rows);
  });
}

template <class T>
void column_moments(const ColumnArgs<T> &a, int64_t block) {
  a.centre ? column_moments_of<true>(a, block) : column_moments_of<false>(a, block);
}

// y, and sums (k = 2): sum u^2 over V, and over padding that is mapped.
template <bool shifted, class T>
void column_map_of(const ColumnArgs<T> &a, int64_t block) {
  T *of_real = block_sums(a, block, 2), *of_padding = of_real + a.channels;
  each_row(a, block, [&](int64_t row, bool real) {
    if (!real && a.at_padding) {
      each_channel(a, [&](int64_t c, auto v) {
        using V = decltype(v);
        store<V>(a.y + row * a.channels + c, load<V>(a.at_padding + c));
      });
      for (int64_t g = 0; a.rate && a.find_rate && g < a.groups; ++g)
        a.rate[row * a.groups + g] = 0;
      return;
    }
    if (a.rate && a.find_rate) find_rates(a, row);
    T *squares = real ? of_real : of_padding;
    each_group(a, row, [&](int64_t at, int64_t begin, int64_t n, T rate) {
      sweep<T>(n, [&](int64_t i, auto v) {
        using V = decltype(v);
        const int64_t c = begin + i;
        V u = load<V>(a.x + at + i) * rate;
        add<V>(squares + c, u * u);
        if constexpr (shifted) u -= load<V>(a.shift + c);
        store<V>(a.y + at + i, u * load<V>(a.gain + c) + load<V>(a.offset + c));
      });
    });
  });
}

template <class T>
void column_map(const ColumnArgs<T> &a, int64_t block) {
  a.shift ? column_map_of<true>(a, block) : column_map_of<false>(a, block);
}

// sums += dy of a row at padding.
template <class T>
inline void add_padding(const ColumnArgs<T> &a, int64_t row, T *sums) {
  each_channel(a, [&](int64_t c, auto v) {
    using V = decltype(v);
    add<V>(sums + c, load<V>(a.dy + row * a.channels + c));
  });
}

// sums (k = 3): sum dy over padding, sum dy over V, sum dy (u - shift) over V.
template <class T>
void column_products(const ColumnArgs<T> &a, int64_t block) {
  T *padding = block_sums(a, block, 3), *of_dy = padding + a.channels, *of_dyz = of_dy + a.channels;
  each_row(a, block, [&](int64_t row, bool real) {
    if (!real) return add_padding(a, row, padding);
    each_group(a, row, [&](int64_t at, int64_t begin, int64_t n, T rate) {
      sweep<T>(n, [&](int64_t i, auto v) {
        using V = decltype(v);
        const int64_t c = begin + i;
        V dy = load<V>(a.dy + at + i), z = load<V>(a.x + at + i) * rate;
        if (a.shift) z -= load<V>(a.shift + c);
        add<V>(of_dy + c, dy);
        add<V>(of_dyz + c, dy * z);
      });
    });
  });
}

// The gradient of one group of a row. shifted: there are shift and constant; scaled: there is a
// layer-scale to go back through; summed: of_dy and of_dyz are added to.
template <bool shifted, bool scaled, bool summed, class T>
inline void group_gradient(const ColumnArgs<T> &a, int64_t at, int64_t begin, int64_t n, T rate,
                           T *of_dy, T *of_dyz) {
  const auto z_of = [&](auto u, int64_t c) {
    if constexpr (shifted) u -= load<decltype(u)>(a.shift + c);
    return u;
  };
  const auto du_of = [&](auto z, auto dy, int64_t c) {
    using V = decltype(z);
    V du = load<V>(a.of_dy + c) * dy + load<V>(a.of_u + c) * z;
    if constexpr (shifted) du += load<V>(a.constant + c);
    return du;
  };
  Sum<T> dots;
  sweep<T>(n, [&](int64_t i, auto v) {
    using V = decltype(v);
    const int64_t c = begin + i;
    V u = load<V>(a.x + at + i) * rate, z = z_of(u, c), dy = load<V>(a.dy + at + i);
    if constexpr (scaled)
      dots.add(V(du_of(z, dy, c) * u));
    else
      store<V>(a.y + at + i, du_of(z, dy, c));
    if constexpr (summed) {
      add<V>(of_dy + c, dy);
      add<V>(of_dyz + c, dy * z);
    }
  });
  if constexpr (scaled) {
    const T dot = dots.total() / n;
    sweep<T>(n, [&](int64_t i, auto v) {
      using V = decltype(v);
      V u = load<V>(a.x + at + i) * rate, dy = load<V>(a.dy + at + i);
      store<V>(a.y + at + i, (du_of(z_of(u, begin + i), dy, begin + i) - u * dot) * rate);
    });
  }
}

template <bool shifted, bool scaled, bool summed, class T>
void column_gradient_of(const ColumnArgs<T> &a, int64_t block) {
  T *padding = nullptr, *of_dy = nullptr, *of_dyz = nullptr;
  if constexpr (summed) {
    padding = block_sums(a, block, 3);
    of_dy = padding + a.channels, of_dyz = of_dy + a.channels;
  }
  each_row(a, block, [&](int64_t row, bool real) {
    if (real)
      return each_group(a, row, [&](int64_t at, int64_t begin, int64_t n, T rate) {
        group_gradient<shifted, scaled, summed>(a, at, begin, n, rate, of_dy, of_dyz);
      });
    each_channel(a, [&](int64_t c, auto v) { store(a.y + row * a.channels + c, decltype(v){}); });
    if constexpr (summed) add_padding(a, row, padding);
  });
}

// dx, and the sums of column_products (k = 3) where there is room for them.
template <class T>
void column_gradient(const ColumnArgs<T> &a, int64_t block) {
  using Pass = void (*)(const ColumnArgs<T> &, int64_t);
  static constexpr Pass passes[2][2][2] = {
      {{column_gradient_of<false, false, false, T>, column_gradient_of<false, false, true, T>},
       {column_gradient_of<false, true, false, T>, column_gradient_of<false, true, true, T>}},
      {{column_gradient_of<true, false, false, T>, column_gradient_of<true, false, true, T>},
       {column_gradient_of<true, true, false, T>, column_gradient_of<true, true, true, T>}}};
  passes[a.shift != nullptr][a.rate != nullptr][a.sums != nullptr](a, block);
}
