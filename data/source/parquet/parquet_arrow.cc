// The Parquet plug-in: a file's rows as JSON lines, by Arrow's C++ libraries. Rows are decoded in
// batches of a thousand, so a file may be larger than memory. Exceptions end here.
//
// Numbers, texts, lists, structs and maps with text keys become what they are in JSON; a NaN, bytes
// that are no text, and what is absent become null; dates, times and decimals become their text.
#include "data/source/parquet_plugin_impl.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/util/utf8.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/properties.h>

#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>

namespace {

constexpr int64_t BATCH_ROWS = 1024;
constexpr int DEPTH_MAX = 64;

struct rows {
    std::unique_ptr<parquet::arrow::FileReader> reader;
    std::shared_ptr<arrow::RecordBatchReader> batches;
    std::shared_ptr<arrow::RecordBatch> batch; // null: the next is to be read
    int64_t row = 0;
    std::string line; // JSON that waits
    size_t at = 0;
};

void put_text(std::string &out, std::string_view text)
{
    static const char digits[] = "0123456789abcdef";
    out += '"';
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (byte < 0x20) {
            out += "\\u00";
            out += digits[byte >> 4];
            out += digits[byte & 15];
        } else {
            out += c;
        }
    }
    out += '"';
}

void put_bytes(std::string &out, std::string_view text)
{
    if (arrow::util::ValidateUTF8(reinterpret_cast<const uint8_t *>(text.data()),
                                  static_cast<int64_t>(text.size())))
        put_text(out, text);
    else
        out += "null";
}

template <typename T> void put_number(std::string &out, T value)
{
    char text[64];
    if constexpr (std::is_floating_point_v<T>)
        if (!std::isfinite(value)) {
            out += "null";
            return;
        }
    const auto end = std::to_chars(text, text + sizeof text, value);
    out.append(text, end.ptr);
    if constexpr (std::is_floating_point_v<T>) // 1 was written for 1.0
        if (std::string_view(text, static_cast<size_t>(end.ptr - text)).find_first_of(".e") ==
            std::string_view::npos)
            out += ".0";
}

arrow::Status put_value(std::string &out, const arrow::Array &array, int64_t i, int depth);

arrow::Status put_list(std::string &out, const arrow::Array &values, int64_t begin, int64_t end,
                       int depth)
{
    out += '[';
    for (int64_t i = begin; i < end; i++) {
        if (i > begin) out += ", ";
        ARROW_RETURN_NOT_OK(put_value(out, values, i, depth));
    }
    out += ']';
    return arrow::Status::OK();
}

arrow::Status put_map(std::string &out, const arrow::MapArray &map, int64_t i, int depth)
{
    const auto *keys = dynamic_cast<const arrow::StringArray *>(map.keys().get());
    if (!keys) return arrow::Status::NotImplemented("maps whose keys are no texts are not read");
    out += '{';
    for (int64_t k = map.value_offset(i); k < map.value_offset(i + 1); k++) {
        if (k > map.value_offset(i)) out += ", ";
        put_bytes(out, keys->GetView(k));
        out += ": ";
        ARROW_RETURN_NOT_OK(put_value(out, *map.items(), k, depth));
    }
    out += '}';
    return arrow::Status::OK();
}

arrow::Status put_struct(std::string &out, const arrow::StructArray &fields, int64_t i, int depth)
{
    out += '{';
    for (int k = 0; k < fields.num_fields(); k++) {
        if (k > 0) out += ", ";
        put_text(out, fields.struct_type()->field(k)->name());
        out += ": ";
        ARROW_RETURN_NOT_OK(put_value(out, *fields.field(k), i, depth));
    }
    out += '}';
    return arrow::Status::OK();
}

template <typename A> const A &as(const arrow::Array &array)
{
    return static_cast<const A &>(array);
}

arrow::Status put_value(std::string &out, const arrow::Array &array, int64_t i, int depth)
{
    if (++depth > DEPTH_MAX) return arrow::Status::NotImplemented("values are nested too deeply");
    if (array.IsNull(i)) {
        out += "null";
        return arrow::Status::OK();
    }
    switch (array.type_id()) {
    case arrow::Type::NA: out += "null"; break;
    case arrow::Type::BOOL:
        out += as<arrow::BooleanArray>(array).Value(i) ? "true" : "false";
        break;
    case arrow::Type::INT8: put_number(out, int{as<arrow::Int8Array>(array).Value(i)}); break;
    case arrow::Type::INT16: put_number(out, as<arrow::Int16Array>(array).Value(i)); break;
    case arrow::Type::INT32: put_number(out, as<arrow::Int32Array>(array).Value(i)); break;
    case arrow::Type::INT64: put_number(out, as<arrow::Int64Array>(array).Value(i)); break;
    case arrow::Type::UINT8: put_number(out, int{as<arrow::UInt8Array>(array).Value(i)}); break;
    case arrow::Type::UINT16: put_number(out, as<arrow::UInt16Array>(array).Value(i)); break;
    case arrow::Type::UINT32: put_number(out, as<arrow::UInt32Array>(array).Value(i)); break;
    case arrow::Type::UINT64: put_number(out, as<arrow::UInt64Array>(array).Value(i)); break;
    case arrow::Type::FLOAT: put_number(out, as<arrow::FloatArray>(array).Value(i)); break;
    case arrow::Type::DOUBLE: put_number(out, as<arrow::DoubleArray>(array).Value(i)); break;
    case arrow::Type::STRING:
    case arrow::Type::BINARY: put_bytes(out, as<arrow::BinaryArray>(array).GetView(i)); break;
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
        put_bytes(out, as<arrow::LargeBinaryArray>(array).GetView(i));
        break;
    case arrow::Type::FIXED_SIZE_BINARY:
        put_bytes(out, as<arrow::FixedSizeBinaryArray>(array).GetView(i));
        break;
    case arrow::Type::LIST: {
        const auto &list = as<arrow::ListArray>(array);
        return put_list(out, *list.values(), list.value_offset(i), list.value_offset(i + 1), depth);
    }
    case arrow::Type::LARGE_LIST: {
        const auto &list = as<arrow::LargeListArray>(array);
        return put_list(out, *list.values(), list.value_offset(i), list.value_offset(i + 1), depth);
    }
    case arrow::Type::FIXED_SIZE_LIST: {
        const auto &list = as<arrow::FixedSizeListArray>(array);
        return put_list(out, *list.values(), list.value_offset(i), list.value_offset(i + 1), depth);
    }
    case arrow::Type::MAP: return put_map(out, as<arrow::MapArray>(array), i, depth);
    case arrow::Type::STRUCT: return put_struct(out, as<arrow::StructArray>(array), i, depth);
    case arrow::Type::DICTIONARY: {
        const auto &words = as<arrow::DictionaryArray>(array);
        return put_value(out, *words.dictionary(), words.GetValueIndex(i), depth);
    }
    default: {
        ARROW_ASSIGN_OR_RAISE(const auto scalar, array.GetScalar(i));
        put_text(out, scalar->ToString());
    }
    }
    return arrow::Status::OK();
}

// The next row's line, or an empty one at the end.
arrow::Status next_line(rows *r)
{
    r->line.clear();
    r->at = 0;
    while (!r->batch || r->row == r->batch->num_rows()) {
        r->row = 0;
        ARROW_RETURN_NOT_OK(r->batches->ReadNext(&r->batch));
        if (!r->batch) return arrow::Status::OK();
        ARROW_RETURN_NOT_OK(r->batch->ValidateFull()); // a stranger's file
    }
    r->line += '{';
    for (int k = 0; k < r->batch->num_columns(); k++) {
        if (k > 0) r->line += ", ";
        put_text(r->line, r->batch->column_name(k));
        r->line += ": ";
        ARROW_RETURN_NOT_OK(put_value(r->line, *r->batch->column(k), r->row, 0));
    }
    r->line += "}\n";
    r->row++;
    return arrow::Status::OK();
}

parquet_result tell(parquet_result result, const char *text, char *why, size_t why_nbytes)
{
    std::snprintf(why, why_nbytes, "%s", text);
    return result;
}

parquet_result result_of(const arrow::Status &status, char *why, size_t why_nbytes)
{
    if (status.ok()) return PARQUET_OK;
    return tell(status.IsOutOfMemory()      ? PARQUET_NO_MEMORY
                : status.IsNotImplemented() ? PARQUET_UNSUPPORTED
                                            : PARQUET_DAMAGED,
                status.message().c_str(), why, why_nbytes);
}

// What Arrow throws becomes a result.
template <typename F> parquet_result guarded(char *why, size_t why_nbytes, F f)
{
    try {
        return result_of(f(), why, why_nbytes);
    } catch (const std::bad_alloc &) {
        return PARQUET_NO_MEMORY;
    } catch (const std::exception &e) {
        return tell(PARQUET_DAMAGED, e.what(), why, why_nbytes);
    } catch (...) {
        return tell(PARQUET_DAMAGED, "no reason is known", why, why_nbytes);
    }
}

arrow::Status open_rows(rows *r, int fd)
{
    const int own = dup(fd); // closed with the file
    if (own < 0) return arrow::Status::IOError("no descriptor is free");
    auto file = arrow::io::ReadableFile::Open(own);
    if (!file.ok()) close(own);
    ARROW_RETURN_NOT_OK(file.status());
    parquet::arrow::FileReaderBuilder builder;
    ARROW_RETURN_NOT_OK(builder.Open(*file));
    parquet::ArrowReaderProperties properties;
    properties.set_batch_size(BATCH_ROWS);
    properties.set_use_threads(false);
    ARROW_RETURN_NOT_OK(builder.properties(properties)->Build(&r->reader));
#if ARROW_VERSION_MAJOR >= 21
    ARROW_ASSIGN_OR_RAISE(r->batches, r->reader->GetRecordBatchReader());
    return arrow::Status::OK();
#else
    std::unique_ptr<arrow::RecordBatchReader> batches;
    ARROW_RETURN_NOT_OK(r->reader->GetRecordBatchReader(&batches));
    r->batches = std::move(batches);
    return arrow::Status::OK();
#endif
}

extern "C" {

parquet_result rows_open(int fd, void **state, char *why, size_t why_nbytes)
{
    *state = nullptr;
    auto *r = new (std::nothrow) rows;
    if (!r) return PARQUET_NO_MEMORY;
    const parquet_result result = guarded(why, why_nbytes, [&] { return open_rows(r, fd); });
    if (result == PARQUET_OK)
        *state = r;
    else
        delete r;
    return result;
}

parquet_result rows_read(void *state, void *dst, size_t n, size_t *got, char *why,
                         size_t why_nbytes)
{
    auto *r = static_cast<rows *>(state);
    *got = 0;
    return guarded(why, why_nbytes, [&] {
        while (*got < n) {
            if (r->at == r->line.size()) ARROW_RETURN_NOT_OK(next_line(r));
            const size_t left = r->line.size() - r->at;
            const size_t take = left < n - *got ? left : n - *got;
            if (take == 0) break;
            std::memcpy(static_cast<char *>(dst) + *got, r->line.data() + r->at, take);
            r->at += take;
            *got += take;
        }
        return arrow::Status::OK();
    });
}

void rows_close(void *state)
{
    delete static_cast<rows *>(state);
}
}

} // namespace

extern "C" const parquet_plugin czero_parquet_plugin = {PARQUET_PLUGIN_VERSION, rows_open,
                                                        rows_read, rows_close};
