// Norms over positions, with an optional layer-scale in front. Included inside the namespace
// of a level.

constexpr int64_t kTile = 4;  // rows whose terms are added in registers before they are stored

// The rows of a block: those of V in front, those at padding behind them.
struct Rows {
  int64_t index[kBlockRows];
  int64_t valid, all;
};

template <class T>
inline Rows rows_of(const ColumnArgs<T> &a, int64_t block) {
  Rows rows;
  const int64_t first = block * kBlockRows;
  rows.all = a.rows - first < kBlockRows ? a.rows - first : kBlockRows;
  rows.valid = 0;
  int64_t padding = rows.all;
  for (int64_t i = 0; i < rows.all; ++i) {
    if (!a.valid || a.valid[first + i])
      rows.index[rows.valid++] = first + i;
    else
      rows.index[--padding] = first + i;
  }
  return rows;
}

template <class T>
inline T *block_sums(const ColumnArgs<T> &a, int64_t block, int64_t kinds) {
  T *sums = a.sums + block * kinds * a.channels;
  for (int64_t i = 0; i < kinds * a.channels; ++i) sums[i] = 0;
  return sums;
}

template <int64_t R>
struct Size {
  static constexpr int64_t size = R;
};

// Calls work(i, Size) for tiles of kTile rows, then of one, from first to last.
template <class Work>
inline void in_tiles(int64_t first, int64_t last, Work work) {
  int64_t i = first;
  for (; i + kTile <= last; i += kTile) work(i, Size<kTile>());
  for (; i < last; ++i) work(i, Size<1>());
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

// A tile's rows and the factors of one group of their channels.
template <class T, int64_t R>
struct Tile {
  int64_t at[R];  // where each row's group begins
  T rate[R];
  inline Tile(const ColumnArgs<T> &a, const int64_t *rows, int64_t group, int64_t begin) {
    for (int64_t r = 0; r < R; ++r) {
      at[r] = rows[r] * a.channels + begin;
      rate[r] = a.rate ? a.rate[rows[r] * a.groups + group] : T(1);
    }
  }
};

// Calls work(tile, begin, n) for each group of channels, n long from begin.
template <int64_t R, class T, class Work>
inline void by_group(const ColumnArgs<T> &a, const int64_t *rows, Work work) {
  const int64_t groups = a.rate ? a.groups : 1, n = a.channels / groups;
  for (int64_t group = 0; group < groups; ++group)
    work(Tile<T, R>(a, rows, group, group * n), group * n, n);
}

// sums (k = 3): with centring the block's mean, sum (u - mean)^2 and the number of rows in
// every entry; without it 0 and sum u^2.
template <class T>
void column_moments(const ColumnArgs<T> &a, int64_t block) {
  const Rows rows = rows_of(a, block);
  T *first = block_sums(a, block, 3), *second = first + a.channels, *count = second + a.channels;
  if (a.rate && a.find_rate)
    for (int64_t i = 0; i < rows.all; ++i) find_rates(a, rows.index[i]);
  if (rows.valid == 0) return;
  // The first row stands in for the mean: sums of differences from it keep their digits
  T *pilot = count;
  by_group<1>(a, rows.index, [&](const Tile<T, 1> &tile, int64_t begin, int64_t n) {
    sweep<T>(n, [&](int64_t i, auto v) {
      using V = decltype(v);
      V u = load<V>(a.x + tile.at[0] + i) * tile.rate[0];
      store<V>(pilot + begin + i, a.centre ? u : V{});
    });
  });
  in_tiles(0, rows.valid, [&](int64_t t, auto size) {
    constexpr int64_t R = decltype(size)::size;
    by_group<R>(a, rows.index + t, [&](const Tile<T, R> &tile, int64_t begin, int64_t n) {
      sweep<T>(n, [&](int64_t i, auto v) {
        using V = decltype(v);
        const V centre = load<V>(pilot + begin + i);
        V one = load<V>(first + begin + i), two = load<V>(second + begin + i);
        for (int64_t r = 0; r < R; ++r) {
          V d = load<V>(a.x + tile.at[r] + i) * tile.rate[r] - centre;
          one += d;
          two += d * d;
        }
        store<V>(first + begin + i, one);
        store<V>(second + begin + i, two);
      });
    });
  });
  const T valid = rows.valid;
  sweep<T>(a.channels, [&](int64_t i, auto v) {
    using V = decltype(v);
    V sum = load<V>(first + i);
    if (a.centre) {
      store<V>(second + i, load<V>(second + i) - sum * sum / valid);
      store<V>(first + i, load<V>(pilot + i) + sum / valid);
    }
    store<V>(count + i, V{} + valid);
  });
}

// y, and sums (k = 2): sum u^2 over V, and over padding that is mapped.
template <bool shifted, class T>
void column_map_of(const ColumnArgs<T> &a, int64_t block) {
  const Rows rows = rows_of(a, block);
  T *squares = block_sums(a, block, 2);
  const auto map = [&](int64_t from, int64_t to, T *sums) {
    in_tiles(from, to, [&](int64_t t, auto size) {
      constexpr int64_t R = decltype(size)::size;
      if (a.rate && a.find_rate)
        for (int64_t r = 0; r < R; ++r) find_rates(a, rows.index[t + r]);
      by_group<R>(a, rows.index + t, [&](const Tile<T, R> &tile, int64_t begin, int64_t n) {
        sweep<T>(n, [&](int64_t i, auto v) {
          using V = decltype(v);
          const int64_t c = begin + i;
          V shift{};
          if constexpr (shifted) shift = load<V>(a.shift + c);
          const V gain = load<V>(a.gain + c), offset = load<V>(a.offset + c);
          V sum = load<V>(sums + c);
          for (int64_t r = 0; r < R; ++r) {
            V u = load<V>(a.x + tile.at[r] + i) * tile.rate[r];
            sum += u * u;
            if constexpr (shifted) u -= shift;
            store<V>(a.y + tile.at[r] + i, u * gain + offset);
          }
          store<V>(sums + c, sum);
        });
      });
    });
  };
  map(0, rows.valid, squares);
  if (!a.at_padding) return map(rows.valid, rows.all, squares + a.channels);
  for (int64_t i = rows.valid; i < rows.all; ++i) {
    T *y = a.y + rows.index[i] * a.channels;
    sweep<T>(a.channels, [&](int64_t c, auto v) {
      using V = decltype(v);
      store<V>(y + c, load<V>(a.at_padding + c));
    });
    for (int64_t g = 0; a.rate && a.find_rate && g < a.groups; ++g)
      a.rate[rows.index[i] * a.groups + g] = 0;
  }
}

template <class T>
void column_map(const ColumnArgs<T> &a, int64_t block) {
  a.shift ? column_map_of<true>(a, block) : column_map_of<false>(a, block);
}

// sums[0] += dy of the rows at padding.
template <class T>
inline void add_padding(const ColumnArgs<T> &a, const Rows &rows, T *sums) {
  for (int64_t r = rows.valid; r < rows.all; ++r)
    sweep<T>(a.channels, [&](int64_t c, auto v) {
      using V = decltype(v);
      store<V>(sums + c, load<V>(sums + c) + load<V>(a.dy + rows.index[r] * a.channels + c));
    });
}

// sums (k = 3): sum dy over padding, sum dy over V, sum dy (u - shift) over V.
template <class T>
void column_products(const ColumnArgs<T> &a, int64_t block) {
  const Rows rows = rows_of(a, block);
  T *padding = block_sums(a, block, 3), *of_dy = padding + a.channels, *of_dyz = of_dy + a.channels;
  in_tiles(0, rows.valid, [&](int64_t t, auto size) {
    constexpr int64_t R = decltype(size)::size;
    by_group<R>(a, rows.index + t, [&](const Tile<T, R> &tile, int64_t begin, int64_t n) {
      sweep<T>(n, [&](int64_t i, auto v) {
        using V = decltype(v);
        const int64_t c = begin + i;
        const V shift = a.shift ? load<V>(a.shift + c) : V{};
        V one = load<V>(of_dy + c), two = load<V>(of_dyz + c);
        for (int64_t r = 0; r < R; ++r) {
          V dy = load<V>(a.dy + tile.at[r] + i);
          one += dy;
          two += dy * (load<V>(a.x + tile.at[r] + i) * tile.rate[r] - shift);
        }
        store<V>(of_dy + c, one);
        store<V>(of_dyz + c, two);
      });
    });
  });
  add_padding(a, rows, padding);
}

// du of one vector of channels of one row, for z = u - shift and dy there.
template <bool constant, class V, class T>
inline V of_u(const ColumnArgs<T> &a, int64_t c, V z, V dy) {
  V du = load<V>(a.of_dy + c) * dy + load<V>(a.of_u + c) * z;
  if constexpr (constant) du += load<V>(a.constant + c);
  return du;
}

// The gradient of a tile of rows, group by group. shifted: there are shift and constant; scaled:
// there is a layer-scale to go back through; summed: of_dy and of_dyz are added to.
template <bool shifted, bool scaled, bool summed, int64_t R, class T>
inline void gradient_of_tile(const ColumnArgs<T> &a, const int64_t *rows, T *of_dy, T *of_dyz) {
  by_group<R>(a, rows, [&](const Tile<T, R> &tile, int64_t begin, int64_t n) {
    const auto u_at = [&](int64_t r, int64_t i, auto v) {
      return load<decltype(v)>(a.x + tile.at[r] + i) * tile.rate[r];
    };
    const auto z_of = [&](auto u, int64_t i) {
      if constexpr (shifted) u -= load<decltype(u)>(a.shift + begin + i);
      return u;
    };
    Sum<T> dots[R];
    sweep<T>(n, [&](int64_t i, auto v) {
      using V = decltype(v);
      V one{}, two{};
      for (int64_t r = 0; r < R; ++r) {
        V u = u_at(r, i, v), z = z_of(u, i), dy = load<V>(a.dy + tile.at[r] + i);
        V du = of_u<shifted>(a, begin + i, z, dy);
        if constexpr (scaled)
          dots[r].add(V(du * u));
        else
          store<V>(a.y + tile.at[r] + i, du);
        one += dy;
        two += dy * z;
      }
      if constexpr (summed) {
        store<V>(of_dy + begin + i, load<V>(of_dy + begin + i) + one);
        store<V>(of_dyz + begin + i, load<V>(of_dyz + begin + i) + two);
      }
    });
    if constexpr (scaled) {
      T dot[R];
      for (int64_t r = 0; r < R; ++r) dot[r] = dots[r].total() / n;
      sweep<T>(n, [&](int64_t i, auto v) {
        using V = decltype(v);
        for (int64_t r = 0; r < R; ++r) {
          V u = u_at(r, i, v), dy = load<V>(a.dy + tile.at[r] + i);
          V du = of_u<shifted>(a, begin + i, z_of(u, i), dy);
          store<V>(a.y + tile.at[r] + i, (du - u * dot[r]) * tile.rate[r]);
        }
      });
    }
  });
}

template <bool shifted, bool scaled, bool summed, class T>
void gradient_of_block(const ColumnArgs<T> &a, int64_t block) {
  const Rows rows = rows_of(a, block);
  T *padding = nullptr, *of_dy = nullptr, *of_dyz = nullptr;
  if constexpr (summed) {
    padding = block_sums(a, block, 3);
    of_dy = padding + a.channels, of_dyz = of_dy + a.channels;
  }
  in_tiles(0, rows.valid, [&](int64_t t, auto size) {
    constexpr int64_t R = decltype(size)::size;
    gradient_of_tile<shifted, scaled, summed, R>(a, rows.index + t, of_dy, of_dyz);
  });
  for (int64_t r = rows.valid; r < rows.all; ++r)
    sweep<T>(a.channels, [&](int64_t c, auto v) {
      store(a.y + rows.index[r] * a.channels + c, decltype(v){});
    });
  if constexpr (summed) add_padding(a, rows, padding);
}

// dx, and the sums of column_products (k = 3) where there is room for them.
template <class T>
void column_gradient(const ColumnArgs<T> &a, int64_t block) {
  const auto with = [&](auto shifted, auto scaled, auto summed) {
    gradient_of_block<shifted.size, scaled.size, summed.size>(a, block);
  };
  const auto with_sums = [&](auto shifted, auto scaled) {
    a.sums ? with(shifted, scaled, Size<1>()) : with(shifted, scaled, Size<0>());
  };
  const auto with_scale = [&](auto shifted) {
    a.rate ? with_sums(shifted, Size<1>()) : with_sums(shifted, Size<0>());
  };
  a.shift ? with_scale(Size<1>()) : with_scale(Size<0>());
}
