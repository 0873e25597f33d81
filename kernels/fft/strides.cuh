// Rows in arrays of any strides, and the signs of the two directions.
#pragma once

// In elements: between rows of the outer and of the inner dimension, and between elements of a row.
struct Strides {
    long long outer, inner, step;

    // The distance of a row's first element from the array's. Rows are counted through both dimensions.
    __device__ long long row(long long number, long long inner_rows) const {
        return number / inner_rows * outer + number % inner_rows * inner;
    }
};
