// A tensor map, encoded by the driver. Its arguments are those of cuTensorMapEncodeTiled.
CUtensorMap tensor_map(const Session &session, void *address, int type, const std::vector<cuuint64_t> &dims,
                       std::vector<cuuint64_t> strides, const std::vector<cuuint32_t> &box,
                       const std::vector<cuuint32_t> &element_strides, int interleave, int swizzle, int promotion,
                       int fill) {
    decltype(&cuTensorMapEncodeTiled) encode = nullptr;
    void *symbol = @NAME@_SYMBOL(session.kernels.driver.library, cuTensorMapEncodeTiled);
    Driver::find(encode, symbol, "cuTensorMapEncodeTiled");
    if (strides.empty()) strides.push_back(16);  // one dimension has no stride, but null is refused
    CUtensorMap map;
    const CUresult result = encode(
        &map, static_cast<CUtensorMapDataType>(type), static_cast<cuuint32_t>(dims.size()), address, dims.data(),
        strides.data(), box.data(), element_strides.data(), static_cast<CUtensorMapInterleave>(interleave),
        static_cast<CUtensorMapSwizzle>(swizzle), static_cast<CUtensorMapL2promotion>(promotion),
        static_cast<CUtensorMapFloatOOBfill>(fill));
    session.check(result, "cuTensorMapEncodeTiled");
    return map;
}

