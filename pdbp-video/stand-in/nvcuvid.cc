// A library with those functions of NVDEC's that this workspace calls, for machines without a device: on that which stands in for the CUDA
// driver, whose device memory is the host's. libavcodec decodes, so that pictures and their order are those of the standard.
//
// It is as unlike a plain decoder as a device is: coded pictures are larger than what is shown, which begins at 16, 16; what is mapped has rows
// of more bytes than samples, with nonsense behind them, in memory of its own that is freed when it is unmapped (which the driver notices if
// a copy is under way there). What programs do wrong is said on standard error, and the call fails. When the program ends and parsers,
// decoders or mapped pictures are left, it ends with status 70.
//
// The parser shows all pictures that it holds when an IDR picture comes, before that is decoded, and so several in one call. It leaves out a
// picture of which there is no slice whose header can be read (here: with four bytes), and pictures that refer to some before the CRA picture
// at which it has begun; to leave out is no error. When the program refuses a sequence or a picture, it goes on, and the call fails in the end.
//
// The environment says what is wrong with the device:
//
//   NVDEC_FAILS     NAME=CODE: that function does nothing and returns that code
//   NVDEC_CODECS    those that it decodes, "h264 hevc" if it is not set
//   NVDEC_MOST      how wide pictures may be, 4096 if it is not set
//   NVDEC_DECODERS  how many decoders there may be at once, any number if it is not set
//   NVDEC_SURFACES  how many surfaces the parser says that each sequence needs, the last number being that of all that follow, as in "20 1"; 20
//                   if it is not set (0: nothing, as before Video Codec SDK 9, and it needs 20)
#include <dlfcn.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

extern "C" int cuMemAlloc_v2(uint64_t *, size_t);
extern "C" int cuMemFree_v2(uint64_t);
extern "C" int cuCtxGetCurrent(void **);

namespace {

constexpr int INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_CONTEXT = 201, NOT_SUPPORTED = 801;
constexpr int H264 = 4, HEVC = 8, CHROMA_420 = 1;
constexpr int DAMAGED = 8, FINE = 2;
// More than libavcodec holds back.
constexpr int SURFACES = 20;
constexpr int EDGE = 16;

// ── The structures of cuviddec.h and nvcuvid.h, as far as they are used

struct Caps {
    int codec, chroma;
    unsigned bit_depth, reserved[3];
    uint8_t is_supported, engines;
    uint16_t formats;
    unsigned most_width, most_height, most_macroblocks;
    uint16_t least_width, least_height;
    unsigned more[11];
};
struct Create {
    unsigned long width, height, surfaces;
    int codec, chroma;
    unsigned long flags, depth, intra, most_width, most_height, reserved;
    short left, top, right, bottom;
    int format, deinterlace;
    unsigned long target_width, target_height, outputs;
    void *lock;
    short target[4];
    unsigned long more[5];
};
struct Picture {
    // In macroblocks.
    int width, height;
    int index, more[3];
    unsigned bytes;
    const uint8_t *data;
    unsigned slices;
    const unsigned *offsets;
    int is_reference, is_intra;
    // Which parser gave it.
    struct Parser *parser;
    unsigned reserved[28 + 1024];
};
struct Status {
    int status;
    unsigned reserved[31];
    void *more[8];
};
struct Packet {
    unsigned long flags, bytes;
    const uint8_t *data;
    long long timestamp;
};
struct Format {
    int codec;
    unsigned rate[2];
    uint8_t is_progressive, luma_depth, chroma_depth, surfaces;
    unsigned width, height;
    int left, top, right, bottom, chroma;
    unsigned more[5];
};
struct Display {
    int index, is_progressive, fields[2];
    long long timestamp;
};
struct Params {
    int codec;
    unsigned surfaces, clock, threshold, delay, reserved[5];
    void *user;
    int (*sequence)(void *, Format *);
    int (*decode)(void *, Picture *);
    int (*display)(void *, Display *);
    void *more[8];
};
static_assert(sizeof(Caps) == 88 && sizeof(Create) == 176 && sizeof(Picture) >= 4280 && sizeof(Status) == 192 && sizeof(Packet) == 32 &&
              sizeof(Format) == 64 && sizeof(Display) == 24 && sizeof(Params) == 136);

// ── libavcodec, by the first fields of its structures, which are the same in all versions but for those of `AVCodecParameters`

struct AvFrame {
    uint8_t *data[8];
    int linesize[8];
    uint8_t **extended;
    int width, height, samples, format, unused[4];
    int64_t pts;
};
struct AvPacket {
    void *buffer;
    int64_t pts, dts;
    uint8_t *data;
    int bytes;
};
template <class F>
void find(void *library, F *&to, const char *name) {
    to = reinterpret_cast<F *>(dlsym(library, name));
    if (!to) fprintf(stderr, "stand-in NVDEC: no %s\n", name), abort();
}
struct Av {
    void *(*decoder)(const char *), *(*context)(void *);
    int (*open)(void *, void *, void **), (*send)(void *, AvPacket *), (*receive)(void *, AvFrame *), (*make)(AvPacket *, int);
    int (*set)(void **, const char *, const char *, int);
    void (*close)(void **), (*flush)(void *), (*log)(int), (*free_packet)(AvPacket **), (*free_frame)(AvFrame **), (*forget)(AvPacket *);
    AvPacket *(*packet)();
    AvFrame *(*frame)();
    void *(*parameters)();
    int (*describe)(void *, const void *);
    void (*free_parameters)(void **);
    unsigned (*version)();
    bool there = false;

    Av() {
        void *library = nullptr;
        for (const char *version : {"62", "61", "60", "59", "58"})
            if (!library) library = dlopen(("libavcodec.so." + std::string(version)).c_str(), RTLD_NOW | RTLD_GLOBAL);
        if (!library) return;
        find(library, decoder, "avcodec_find_decoder_by_name"), find(library, context, "avcodec_alloc_context3");
        find(library, open, "avcodec_open2"), find(library, send, "avcodec_send_packet"), find(library, receive, "avcodec_receive_frame");
        find(library, make, "av_new_packet"), find(library, set, "av_dict_set"), find(library, close, "avcodec_free_context");
        find(library, flush, "avcodec_flush_buffers"), find(library, log, "av_log_set_level");
        find(library, free_packet, "av_packet_free"), find(library, free_frame, "av_frame_free"), find(library, forget, "av_packet_unref");
        find(library, packet, "av_packet_alloc"), find(library, frame, "av_frame_alloc"), find(library, version, "avcodec_version");
        find(library, parameters, "avcodec_parameters_alloc"), find(library, describe, "avcodec_parameters_from_context");
        find(library, free_parameters, "avcodec_parameters_free");
        log(-8);
        there = true;
    }

    // Width and height of the pictures that a context decodes, 0 if it has not seen any.
    std::pair<int, int> size(const void *context) {
        void *all = parameters();
        describe(all, context);
        const int *two = reinterpret_cast<const int *>(static_cast<char *>(all) + (version() >> 16 < 61 ? 56 : 72));
        const std::pair size{two[0], two[1]};
        free_parameters(&all);
        return size;
    }
};
Av &av() {
    static Av loaded;
    return loaded;
}

__attribute__((format(printf, 2, 3))) int wrong(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("stand-in NVDEC: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return code;
}

int begin(const char *function) {
    const char *plan = getenv("NVDEC_FAILS"), *code = plan ? strchr(plan, '=') : nullptr;
    if (code && std::string(plan, code) == function) return atoi(code + 1);
    void *context = nullptr;
    // An error is one of something else.
    if (!cuCtxGetCurrent(&context) && !context) return wrong(NO_CONTEXT, "%s: no context is current on this thread", function);
    return 0;
}

// ── What there is

// A picture that was decoded: 4:2:0 planes without padding.
struct Shown {
    int width = 0, height = 0, status = 0;
    std::vector<uint8_t> planes[3];
};

struct Parser {
    Params params;
    void *context;
    AvPacket *packet;
    AvFrame *frame;
    Shown shown[SURFACES];
    int64_t next = 0;
    // Of its sequence.
    int width = 0, height = 0;
    // Pictures have numbers below it.
    int surfaces = 1;
    // Sequences that it has told of.
    int told = 0;
    // Whether it has begun at the last key picture.
    bool begins = true, began_there = true;
    bool fails = false;
};

struct Decoder {
    Create info;
    uint64_t surfaces;
    Parser *parser = nullptr;
    std::set<uint64_t> mapped;
};
std::mutex mutex;
std::set<Parser *> parsers;
std::set<Decoder *> decoders;

// What is left when the program ends.
struct Leaks {
    ~Leaks() {
        size_t mapped = 0;
        for (auto *decoder : decoders) mapped += decoder->mapped.size();
        if (parsers.empty() && decoders.empty()) return;
        wrong(0, "left: %zu parsers, %zu decoders, %zu mapped pictures", parsers.size(), decoders.size(), mapped);
        _exit(70);
    }
} leaks;

void take(Shown &to, const AvFrame &frame) {
    to.width = frame.width, to.height = frame.height, to.status = FINE;
    for (int plane = 0; plane < 3; plane++) {
        const int width = plane ? (frame.width + 1) / 2 : frame.width, height = plane ? (frame.height + 1) / 2 : frame.height;
        to.planes[plane].resize(size_t(width) * height);
        for (int row = 0; row < height; row++)
            memcpy(&to.planes[plane][size_t(row) * width], frame.data[plane] + ptrdiff_t(row) * frame.linesize[plane], width);
    }
}

int coded(int samples) { return (EDGE + samples + 15) / 16 * 16 + EDGE; }

// How many surfaces the parser says that its sequence of that number needs.
int surfaces_of(int sequence) {
    const char *list = getenv("NVDEC_SURFACES");
    if (!list) return SURFACES;
    while (sequence-- > 0 && strchr(list, ' ')) list = strchr(list, ' ') + 1;
    return atoi(list);
}

// Tells the program of the sequence, if that is new.
void tell(Parser &parser, int width, int height) {
    if (width == parser.width && height == parser.height) return;
    const int needed = surfaces_of(parser.told++);
    Format format{};
    format.codec = parser.params.codec, format.is_progressive = 1, format.chroma = CHROMA_420;
    format.surfaces = uint8_t(needed);
    format.width = coded(width), format.height = coded(height);
    format.left = format.top = EDGE, format.right = EDGE + width, format.bottom = EDGE + height;
    const int has = parser.params.sequence(parser.params.user, &format);
    if (has < (needed ? needed : SURFACES)) parser.fails = true;
    // 1 says that all is well, and nothing of the number: that stays as it was.
    if (has > 1) parser.surfaces = has < SURFACES ? has : SURFACES;
    parser.width = width, parser.height = height;
}

void decode(Parser &parser, int64_t number) {
    Picture picture{};
    picture.index = int(number % parser.surfaces), picture.parser = &parser;
    picture.width = coded(parser.width) / 16, picture.height = coded(parser.height) / 16;
    if (!parser.params.decode(parser.params.user, &picture)) parser.fails = true;
}

void show(Parser &parser, int64_t number) {
    Display display{};
    display.index = int(number % parser.surfaces), display.is_progressive = 1;
    if (!parser.params.display(parser.params.user, &display)) parser.fails = true;
}

void receive(Parser &parser) {
    while (!av().receive(parser.context, parser.frame)) {
        const int64_t number = parser.frame->pts;
        take(parser.shown[number % parser.surfaces], *parser.frame);
        show(parser, number);
    }
}

// Shows all pictures that it holds.
void drain(Parser &parser) {
    av().send(parser.context, nullptr);
    receive(parser);
    av().flush(parser.context);
}

// What a packet holds.
struct Contents {
    bool has_slice = false, is_idr = false, is_key = false, is_skipped = false;
};
Contents contents(const Parser &parser, const Packet &packet) {
    Contents found;
    const std::string_view data(reinterpret_cast<const char *>(packet.data), packet.bytes), start("\0\0\1", 3);
    for (size_t at = data.find(start); at != data.npos;) {
        const size_t next = data.find(start, at += 3);
        const std::string_view unit = data.substr(at, next == data.npos ? next : next - at);
        at = next;
        if (unit.size() < 4) continue;
        const bool is_hevc = parser.params.codec == HEVC;
        const int type = is_hevc ? uint8_t(unit[0]) >> 1 & 63 : unit[0] & 31;
        if (is_hevc ? type > 31 : type != 1 && type != 5) continue;
        found.has_slice = true;
        found.is_idr = is_hevc ? type == 19 || type == 20 : type == 5;
        found.is_key = found.is_idr || (is_hevc && type >= 16 && type <= 21);
        found.is_skipped = is_hevc && (type == 8 || type == 9);
    }
    return found;
}

void give(Parser &parser, const Packet &packet) {
    const Contents found = contents(parser, packet);
    if (found.is_key) parser.began_there = std::exchange(parser.begins, false);
    if (!found.has_slice || (found.is_skipped && parser.began_there)) return;
    if (found.is_idr) drain(parser);
    const int64_t number = parser.next++;
    av().make(parser.packet, int(packet.bytes));
    memcpy(parser.packet->data, packet.data, packet.bytes);
    parser.packet->pts = number;
    const bool damaged = av().send(parser.context, parser.packet) < 0;
    av().forget(parser.packet);
    const auto [width, height] = av().size(parser.context);
    // Before the first picture there is nothing like a damaged one.
    tell(parser, width ? width : 176, height ? height : 144);
    decode(parser, number);
    receive(parser);
    if (!damaged) return;
    // A device shows something in its place.
    Shown &shown = parser.shown[number % parser.surfaces];
    shown.width = parser.width, shown.height = parser.height, shown.status = DAMAGED;
    for (auto &plane : shown.planes) plane.assign(size_t(parser.width) * parser.height, 128);
    show(parser, number);
}

bool decodes(int codec) {
    const char *codecs = getenv("NVDEC_CODECS");
    return strstr(codecs ? codecs : "h264 hevc", codec == H264 ? "h264" : codec == HEVC ? "hevc" : "?");
}
}  // namespace

#define NVDEC extern "C" __attribute__((visibility("default"))) int
#define CALL() \
    if (int code = begin(__func__)) return code

NVDEC cuvidGetDecoderCaps(Caps *caps) {
    CALL();
    caps->is_supported = decodes(caps->codec) && caps->chroma == CHROMA_420 && !caps->bit_depth && av().there;
    if (!caps->is_supported) return 0;
    const char *most = getenv("NVDEC_MOST");
    caps->least_width = 48, caps->least_height = 16;
    caps->most_width = unsigned(most ? atoi(most) : 4096), caps->most_height = 4096, caps->most_macroblocks = 65536;
    return 0;
}

NVDEC cuvidCreateVideoParser(Parser **out, Params *params) {
    CALL();
    if (!decodes(params->codec) || !av().there) return NOT_SUPPORTED;
    void *codec = av().decoder(params->codec == H264 ? "h264" : "hevc"), *options = nullptr;
    for (auto [name, value] : {std::pair{"threads", "1"}, {"strict", "strict"}, {"err_detect", "crccheck+explode"}})
        av().set(&options, name, value, 0);
    void *context = av().context(codec);
    if (av().open(context, codec, &options)) return NOT_SUPPORTED;
    *out = new Parser{*params, context, av().packet(), av().frame(), {}};
    std::lock_guard lock(mutex);
    parsers.insert(*out);
    return 0;
}
NVDEC cuvidParseVideoData(Parser *parser, Packet *packet) {
    CALL();
    parser->fails = false;
    if (packet->bytes) {
        if (!(packet->flags & 8)) return wrong(INVALID_VALUE, "a packet that is not said to be one picture");
        give(*parser, *packet);
    }
    if (packet->flags & 1) {
        drain(*parser);
        parser->begins = true;
    }
    return parser->fails ? INVALID_VALUE : 0;
}
NVDEC cuvidDestroyVideoParser(Parser *parser) {
    CALL();
    std::lock_guard lock(mutex);
    if (!parsers.erase(parser)) return wrong(INVALID_VALUE, "no such parser");
    av().close(&parser->context), av().free_packet(&parser->packet), av().free_frame(&parser->frame);
    delete parser;
    return 0;
}

NVDEC cuvidCreateDecoder(Decoder **out, Create *info) {
    CALL();
    const bool shows_all = info->target_width == size_t(info->right - info->left) && info->target_height == size_t(info->bottom - info->top);
    if (!info->surfaces || !info->outputs || info->format || info->depth || info->chroma != CHROMA_420 || !shows_all ||
        size_t(info->right) > info->width || size_t(info->bottom) > info->height)
        return wrong(INVALID_VALUE, "a decoder that shows something else than the stream says");
    const char *most = getenv("NVDEC_DECODERS");
    std::lock_guard lock(mutex);
    if (most && decoders.size() >= size_t(atoi(most))) return OUT_OF_MEMORY;
    uint64_t surfaces;
    if (int code = cuMemAlloc_v2(&surfaces, info->width * info->height * 3 / 2 * info->surfaces)) return code;
    *out = new Decoder{*info, surfaces, nullptr, {}};
    decoders.insert(*out);
    return 0;
}
NVDEC cuvidDestroyDecoder(Decoder *decoder) {
    CALL();
    std::lock_guard lock(mutex);
    if (!decoders.erase(decoder)) return wrong(INVALID_VALUE, "no such decoder");
    if (!decoder->mapped.empty()) wrong(0, "a decoder is destroyed with %zu mapped pictures", decoder->mapped.size()), abort();
    cuMemFree_v2(decoder->surfaces);
    delete decoder;
    return 0;
}
NVDEC cuvidDecodePicture(Decoder *decoder, Picture *picture) {
    CALL();
    if (picture->index < 0 || size_t(picture->index) >= decoder->info.surfaces)
        return wrong(INVALID_VALUE, "picture %d of %d", picture->index, int(decoder->info.surfaces));
    if (size_t(picture->width) * 16 != decoder->info.width || size_t(picture->height) * 16 != decoder->info.height)
        return wrong(INVALID_VALUE, "a picture for a decoder of another size");
    decoder->parser = picture->parser;
    return 0;
}
NVDEC cuvidGetDecodeStatus(Decoder *decoder, int index, Status *status) {
    CALL();
    status->status = decoder->parser->shown[index].status;
    return 0;
}
NVDEC cuvidMapVideoFrame64(Decoder *decoder, int index, uint64_t *out, unsigned *pitch, void *) {
    CALL();
    if (!decoder->parser || decoder->mapped.size() >= decoder->info.outputs) return wrong(INVALID_VALUE, "more mapped pictures than surfaces for them");
    const Shown &shown = decoder->parser->shown[index];
    const int width = shown.width, height = shown.height;
    if (size_t(width) != decoder->info.target_width || size_t(height) != decoder->info.target_height)
        return wrong(INVALID_VALUE, "a picture of %d×%d from a decoder of another size", width, height);
    *pitch = unsigned(width + 255) / 256 * 256;
    const size_t bytes = size_t(*pitch) * height * 3 / 2;
    if (int code = cuMemAlloc_v2(out, bytes)) return code;
    auto *rows = reinterpret_cast<uint8_t *>(*out);
    memset(rows, 0xa5, bytes);
    for (int row = 0; row < height; row++) memcpy(rows + size_t(row) * *pitch, &shown.planes[0][size_t(row) * width], width);
    for (int row = 0; row < height / 2; row++)
        for (int n = 0; n < width; n++)
            rows[size_t(height + row) * *pitch + n] = shown.planes[1 + n % 2][size_t(row) * (width / 2) + n / 2];
    decoder->mapped.insert(*out);
    return 0;
}
NVDEC cuvidUnmapVideoFrame64(Decoder *decoder, uint64_t at) {
    CALL();
    if (!decoder->mapped.erase(at)) return wrong(INVALID_VALUE, "this is not mapped");
    return cuMemFree_v2(at);
}
