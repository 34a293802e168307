// Norms over positions, with an optional layer-scale in front. Included inside the namespace of a
// level.
//
// Rows are worked on one by one, in their order: memory read from one end to the other costs less
// than sums that are loaded and stored once for several rows.

// One group of channels of a row: channels begin to begin + n, whose first number is number `at`
// of x; rate is 1 without a layer-scale.
template <class T>
struct Group {
  int64_t at, begin, n;
  T rate;
};

// Calls work(row, real) for the rows of a block.
template <class T, class Work>
inline void each_row(const ColumnArgs<T> &a, int64_t block, Work work) {
  int64_t last = (block + 1) * kBlockRows;
  if (last > a.rows) last = a.rows;
  for (int64_t row = block * kBlockRows; row < last; ++row) work(row, !a.valid || a.valid[row]);
}

// Calls work(group) for each group of channels of a row.
template <class T, class Work>
inline void each_group(const ColumnArgs<T> &a, int64_t row, Work work) {
  const int64_t groups = a.rate ? a.groups : 1, n = a.channels / groups;
  for (int64_t i = 0; i < groups; ++i)
    work(Group<T>{row * a.channels + i * n, i * n, n, a.rate ? a.rate[row * groups + i] : T(1)});
}

// Calls step(c, V) for all channels of a row.
template <class T, class Step>
inline void each_channel(const ColumnArgs<T> &a, Step step) {
  sweep<T>(a.channels, step);
}

// Room for sums of `kinds` kinds over a block, all 0.
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
    const T squares = sum_over<T>(n, [&](int64_t i, auto v) {
      auto one = load<decltype(v)>(x + i);
      return one * one;
    });
    a.rate[row * a.groups + group] = 1 / root(squares / n + T(a.eps));
  }
}

// What a block knows of its first rows, per channel. With centring: a pilot, the mean of u - pilot
// and sum (u - mean)^2; without: nothing, sum u and sum u^2.
template <class T>
struct Moments {
  T *first, *second, *pilot;
};

// Adds row number `before` of the real ones by the updates of Welford 1962, which add no square
// that is later taken away: if one row is far from the others, neither digits nor, at 1e18, the
// range of float is lost. Differences from the pilot, the first row, keep the digits that a common
// offset would cost.
template <bool is_first, class T>
inline void add_centred(const ColumnArgs<T> &a, const Group<T> &g, int64_t before,
                        const Moments<T> &to) {
  const T share = T(1) / (before + 1);
  sweep<T>(g.n, [&](int64_t i, auto v) {
    using V = decltype(v);
    const int64_t c = g.begin + i;
    const V u = load<V>(a.x + g.at + i) * g.rate;
    if constexpr (is_first) return store<V>(to.pilot + c, u);
    const V old = load<V>(to.first + c), gap = u - load<V>(to.pilot + c) - old;
    const V step = gap * share;
    store<V>(to.first + c, old + step);
    add<V>(to.second + c, gap * (gap - step));
  });
}

template <class T>
inline void add_plain(const ColumnArgs<T> &a, const Group<T> &g, const Moments<T> &to) {
  sweep<T>(g.n, [&](int64_t i, auto v) {
    using V = decltype(v);
    const V u = load<V>(a.x + g.at + i) * g.rate;
    add<V>(to.first + g.begin + i, u);
    add<V>(to.second + g.begin + i, u * u);
  });
}

// sums (k = 3): with centring the block's mean, sum (u - mean)^2 and the number of rows in
// every entry; without it sum u, sum u^2 and nothing.
template <bool centre, class T>
void column_moments_of(const ColumnArgs<T> a, int64_t block) {
  T *sums = block_sums(a, block, 3);
  const Moments<T> to{sums, sums + a.channels, sums + 2 * a.channels};
  int64_t before = 0;
  each_row(a, block, [&](int64_t row, bool real) {
    if (a.rate) find_rates(a, row);  // at padding too, which a norm may map with its own rate
    if (!real) return;
    each_group(a, row, [&](const Group<T> &g) {
      if constexpr (!centre)
        add_plain(a, g, to);
      else if (before == 0)
        add_centred<true>(a, g, before, to);
      else
        add_centred<false>(a, g, before, to);
    });
    ++before;
  });
  if (!centre || before == 0) return;
  const T rows = before;
  each_channel(a, [&](int64_t c, auto v) {
    using V = decltype(v);
    add<V>(to.first + c, load<V>(to.pilot + c));
    store<V>(to.pilot + c, V{} + rows);
  });
}

template <class T>
void column_moments(const ColumnArgs<T> &a, int64_t block) {
  a.centre ? column_moments_of<true>(a, block) : column_moments_of<false>(a, block);
}

// y of a group; squares: sum u^2 is added to them if summed.
template <bool shifted, bool summed, class T>
inline void map_group(const ColumnArgs<T> &a, const Group<T> &g, T *squares) {
  sweep<T>(g.n, [&](int64_t i, auto v) {
    using V = decltype(v);
    const int64_t c = g.begin + i;
    V u = load<V>(a.x + g.at + i) * g.rate;
    if constexpr (summed) add<V>(squares + c, u * u);
    if constexpr (shifted) u -= load<V>(a.shift + c);
    store<V>(a.y + g.at + i, u * load<V>(a.gain + c) + load<V>(a.offset + c));
  });
}

// y at a row that is padding and not mapped.
template <class T>
inline void fill_padding(const ColumnArgs<T> &a, int64_t row) {
  each_channel(a, [&](int64_t c, auto v) {
    using V = decltype(v);
    store<V>(a.y + row * a.channels + c, load<V>(a.at_padding + c));
  });
  for (int64_t g = 0; a.rate && a.find_rate && g < a.groups; ++g) a.rate[row * a.groups + g] = 0;
}

template <bool shifted, bool summed, class T>
void column_map_of(const ColumnArgs<T> a, int64_t block) {
  T *of_real = nullptr, *of_padding = nullptr;
  if constexpr (summed) of_real = block_sums(a, block, 2), of_padding = of_real + a.channels;
  each_row(a, block, [&](int64_t row, bool real) {
    if (!real && a.at_padding) return fill_padding(a, row);
    if (a.rate && a.find_rate) find_rates(a, row);
    each_group(a, row, [&](const Group<T> &g) {
      map_group<shifted, summed>(a, g, real ? of_real : of_padding);
    });
  });
}

// y, and sums (k = 2) where there is room for them: sum u^2 over V, and over padding that is mapped.
template <class T>
void column_map(const ColumnArgs<T> &a, int64_t block) {
  if (a.sums)
    a.shift ? column_map_of<true, true>(a, block) : column_map_of<false, true>(a, block);
  else
    a.shift ? column_map_of<true, false>(a, block) : column_map_of<false, false>(a, block);
}

// The sums of column_products over a block; null where they are not asked for.
template <class T>
struct Products {
  T *padding, *of_dy, *of_dyz;
};

template <class T>
inline Products<T> products_room(const ColumnArgs<T> &a, int64_t block) {
  if (!a.sums) return {};
  T *sums = block_sums(a, block, 3);
  return {sums, sums + a.channels, sums + 2 * a.channels};
}

// sums += dy of a row at padding.
template <class T>
inline void add_padding(const ColumnArgs<T> &a, int64_t row, T *sums) {
  each_channel(a, [&](int64_t c, auto v) {
    using V = decltype(v);
    add<V>(sums + c, load<V>(a.dy + row * a.channels + c));
  });
}

template <bool shifted, class T>
void column_products_of(const ColumnArgs<T> a, int64_t block) {
  const Products<T> to = products_room(a, block);
  each_row(a, block, [&](int64_t row, bool real) {
    if (!real) return add_padding(a, row, to.padding);
    each_group(a, row, [&](const Group<T> &g) {
      sweep<T>(g.n, [&](int64_t i, auto v) {
        using V = decltype(v);
        const int64_t c = g.begin + i;
        V dy = load<V>(a.dy + g.at + i), z = load<V>(a.x + g.at + i) * g.rate;
        if constexpr (shifted) z -= load<V>(a.shift + c);
        add<V>(to.of_dy + c, dy);
        add<V>(to.of_dyz + c, dy * z);
      });
    });
  });
}

// sums (k = 3): sum dy over padding, sum dy over V, sum dy (u - shift) over V.
template <class T>
void column_products(const ColumnArgs<T> &a, int64_t block) {
  a.shift ? column_products_of<true>(a, block) : column_products_of<false>(a, block);
}

// The coefficients of du = of_dy dy + constant + of_u z at a channel, z = u - shift.
template <bool shifted, class V>
struct Coefficients {
  V of_dy, of_u, constant, shift;
  template <class T>
  inline Coefficients(const ColumnArgs<T> &a, int64_t c)
      : of_dy(load<V>(a.of_dy + c)), of_u(load<V>(a.of_u + c)) {
    if constexpr (shifted) constant = load<V>(a.constant + c), shift = load<V>(a.shift + c);
  }
  inline V z(V u) const {
    if constexpr (shifted) u -= shift;
    return u;
  }
  inline V du(V dy, V z) const {
    V sum = of_dy * dy + of_u * z;
    if constexpr (shifted) sum += constant;
    return sum;
  }
};

// dx of a group without a layer-scale; with one (scaled) nothing but sum du u, which is returned.
template <bool shifted, bool scaled, bool summed, class T>
inline T du_of_group(const ColumnArgs<T> &a, const Group<T> &g, const Products<T> &to) {
  return sum_over<T>(g.n, [&](int64_t i, auto v) {
    using V = decltype(v);
    const int64_t c = g.begin + i;
    const Coefficients<shifted, V> at(a, c);
    const V u = load<V>(a.x + g.at + i) * g.rate, dy = load<V>(a.dy + g.at + i);
    const V z = at.z(u), du = at.du(dy, z);
    if constexpr (summed) add<V>(to.of_dy + c, dy), add<V>(to.of_dyz + c, dy * z);
    if constexpr (scaled) return V(du * u);
    store<V>(a.y + g.at + i, du);
    return V{};
  });
}

// dx = rate (du - u mean(du u)): du once more, from a row that is in the cache by now.
template <bool shifted, class T>
inline void through_scale(const ColumnArgs<T> &a, const Group<T> &g, T mean) {
  sweep<T>(g.n, [&](int64_t i, auto v) {
    using V = decltype(v);
    const Coefficients<shifted, V> at(a, g.begin + i);
    const V u = load<V>(a.x + g.at + i) * g.rate, dy = load<V>(a.dy + g.at + i);
    store<V>(a.y + g.at + i, (at.du(dy, at.z(u)) - u * mean) * g.rate);
  });
}

// shifted: there are shift and constant; scaled: there is a layer-scale to go back through;
// summed: the sums of column_products are wanted too.
template <bool shifted, bool scaled, bool summed, class T>
void column_gradient_of(const ColumnArgs<T> a, int64_t block) {
  const Products<T> to = products_room(a, block);
  each_row(a, block, [&](int64_t row, bool real) {
    if (real)
      return each_group(a, row, [&](const Group<T> &g) {
        const T dot = du_of_group<shifted, scaled, summed>(a, g, to);
        if constexpr (scaled) through_scale<shifted>(a, g, dot / g.n);
      });
    each_channel(a, [&](int64_t c, auto v) { store(a.y + row * a.channels + c, decltype(v){}); });
    if constexpr (summed) add_padding(a, row, to.padding);
  });
}

// dx, and the sums of column_products (k = 3) where there is room for them.
template <class T>
void column_gradient(const ColumnArgs<T> &a, int64_t block) {
  using Pass = void (*)(const ColumnArgs<T>, int64_t);
  static constexpr Pass passes[2][2][2] = {
      {{column_gradient_of<false, false, false, T>, column_gradient_of<false, false, true, T>},
       {column_gradient_of<false, true, false, T>, column_gradient_of<false, true, true, T>}},
      {{column_gradient_of<true, false, false, T>, column_gradient_of<true, false, true, T>},
       {column_gradient_of<true, true, false, T>, column_gradient_of<true, true, true, T>}}};
  passes[a.shift != nullptr][a.rate != nullptr][a.sums != nullptr](a, block);
}
