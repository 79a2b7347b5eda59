//! Video quality monitor: many H.264 and H.265 streams, decoded on some nodes of a cluster and analysed on others.
//!
//! The modules, in the order in which a picture passes them:
//!
//! * [`clips`]: where streams come from: bundled clips and the user's files (Annex B, MP4; Matroska and transport streams by libavformat);
//! * [`sources`]: streams received while the program runs, by RTSP or as RTP over UDP;
//! * [`annexb`]: the structure of an H.264 or H.265 stream; where decoding can begin;
//! * [`streams`]: thousands of concurrent streams served from a few clips;
//! * [`decode`]: H.264 to YUV by libavcodec, openh264 or NVDEC, H.265 by libavcodec or NVDEC, with a small pool of decoders or one for each stream;
//! * [`frame`]: frames and score records as they travel between parts;
//! * [`measure`]: RGB restoration, blur, blockiness and smoothness, by the processor or by CUDA devices;
//! * [`plan`], [`pipeline`]: the roles in a cluster, and the parts that fill them over PDBP;
//! * [`direct`]: all of this on the threads of one process, without transport;
//! * [`elastic`]: the other program, `pdbp-clips`: files cut at their entry points and measured as tasks;
//! * [`account`], [`outcome`]: where the time went, and what a run produced;
//! * [`progress`]: what a run reports while it goes on;
//! * [`live`]: the page that `--serve` shows meanwhile;
//! * [`report`]: the table on the terminal, the HTML page and the CSV files;
//! * [`cli`]: the command line.
//!
//! # Figures
//! The figures come from several machines, loads and versions, as each states: compare within a table, not between tables. This first table is for
//! openh264, which decodes where there is no libavcodec; [Decoders](#decoders) has libavcodec's figures. On 2 otherwise idle cores of a virtual
//! Intel Xeon at 2.6 GHz; openh264 built with `nasm`.
//!
//! | command (`cargo run --release -p pdbp-video -- …`) | one pass | decoding / analysis per frame | outside both |
//! |---|---|---|---|
//! | `--streams 10080 --class qcif --nodes 4` | 4.53 s | 804 µs / 31 µs | 6.6 % |
//! | the same with `--nodes 0`, without transport | 4.07 s | 768 µs / 30 µs | 0.4 % |
//! | (none: 2,520 streams of QCIF, CIF and D1) | 4.25 s | 2.95 ms / 97 µs | 9.0 % |
//! | `--continuous --class qcif --streams 400 --passes 100` | 49.7 ms | 206 µs / 33 µs | 12.1 % |
//!
//! The patent (S0) gives 1.5 s for a pass over 10,080 pictures on 18 machines. A monitoring pass by openh264 **misses it by a factor of three**
//! ([by libavcodec](#with-nothing-else-to-do) of less than two): it decodes an IDR picture of about 6 KB from each stream, and openh264's CABAC
//! parsing alone takes longer than the 297 µs that two cores have per stream. PDBP adds 0.4 s. In continuous mode, where most pictures are P
//! frames, 8,000 frames/s correspond to 1.3 s for 10,080, but only about 4,300 decoders fit in 23 GiB. Without `nasm` an IDR takes 1.1 times as
//! long, all frames together 1.3 times.
//!
//! # Decoders
//! `--decoder auto`, the default, uses libavcodec where the system has one, and otherwise openh264, which is part of the program; the last line of
//! the table says which one was used. libavcodec is loaded when a [`Codec`](decode::Codec) asks for it, so the build does not need it: versions 58
//! to 62, those of FFmpeg 4 to 8; Debian 12 has it as `libavcodec59`. Both decode to the same pictures (`tests/decoders.rs`: those that x264
//! reconstructed), except for B pictures, in which openh264 gets some samples wrong by a few levels; `--continuous` warns when it matters.
//! Interlaced and lossless video, and anything but 8-bit 4:2:0, is refused by name with either.
//!
//! H.265 is decoded by libavcodec or NVDEC; without them such files are refused by name. Pictures are those that x265 reconstructed
//! (`tests/hevc.rs`). libavcodec does not report damage within slices unless the encoder has written hashes of its pictures (`x265 --hash 1`). If
//! it has, they are compared, and damaged pictures are left out and reported, as those of H.264 always are.
//!
//! `--decoder nvdec` uses the decoder of an NVIDIA GPU through the driver's `libnvcuvid`, which is loaded like the driver (Debian: `libnvcuvid1`).
//! The number of live decoders then depends on the memory left on the device. What the device does not decode, by its own account of codecs and
//! sizes, is refused by name, without fallback; `auto` never uses it. Without transport (`--nodes 0`) analysis on the same device takes the
//! pictures from the device's memory; in a cluster frames travel in the host's. On an H200 its pictures are the encoders', bit for bit. The tests
//! of `ci/cuda` use a library that stands in for it: it lets libavcodec decode, returns pictures as a device does, with margins and padding, in the
//! device's memory, and notices leaks. What NVDEC costs on the H200, with analysis by the kernels, sixteen processors, one run each, libavcodec 62:
//!
//! | `--nodes 0 --analyse gpu` | NVDEC | libavcodec | openh264 |
//! |---|---|---|---|
//! | `--class cif --streams 2520 --passes 10`: an IDR of each, pictures/s | 15,700 | 10,950 | 6,700 |
//! | processor time of a picture | 0.22 ms | 1.30 ms | 2.20 ms |
//! | `--class d1 --streams 64 --continuous --passes 500`: quickest pass | 3.9 ms (16,600 pictures/s) | 6.8 ms | 11.6 ms |
//! | pictures/s with the making of the decoders | **5,340** | 5,640 | 3,350 |
//! | processor time of a picture | 0.46 ms | 1.54 ms | 3.17 ms |
//! | a live decoder of D1, on the device or the host | 7.9 MB | 4.4 MB | 10.8 MB |
//!
//! The driver creates decoders one after the other, about 20 ms each: 64 take more than a second, in which no picture arrives.
//!
//! Processor time and resident memory on the machine above, **while other programs used it** (load 12 to 16): suited for comparing the two columns,
//! which come from one run, but not with the times above. `--example speed` prints the first rows, `--continuous` the memory that it measures
//! before it begins.
//!
//! | QCIF, CIF, D1 | openh264 | libavcodec 59.37 (FFmpeg 5.1) |
//! |---|---|---|
//! | live decoder | 4.53, 5.81, 10.8 MB | 0.97, 1.60, 4.46 MB |
//! | key frame, one decoder for all | 0.81, 2.65, 8.0 ms | 0.45, 1.52, 4.6 ms |
//! | P frame, one decoder by itself | 0.10, 0.37, 1.49 ms | 0.06, 0.19, 0.75 ms |
//! | frames of 400 and of 2,500 live QCIF decoders in turn | 0.19, 0.29 ms | 0.13, 0.15 ms |
//! | one key frame of each of 10,080 QCIF streams, decoding / all | 8.6 / 10.3 s | 5.0 / 6.1 s |
//! | live QCIF decoders for which 22 GiB have room | 4,190 | 18,480 (21.7 GiB) |
//!
//! A live decoder of libavcodec took 1.69, 2.31 and 5.17 MB before 0.71 MB of zeros in its context, which are never used, were returned to the
//! system (Linux). The remaining 0.97 MB are four or five pictures, 0.3 MB, two tables of quantisers, 0.35 MB, and buffers of the stream. Options
//! do not change that: low delay, no error concealment and aligned pictures gave 1.62 to 1.63 MB, all of them.
//!
//! So `--continuous --class qcif --streams 10080` follows every frame of 10,080 streams in 9.5 GiB (the peak of a run of eight passes; 17 GB
//! before) where 13 GB are free, a fifth of which it leaves to others; with openh264 less than half of them fit in 22 GiB. Before the zeros were
//! returned, decoding a frame took 0.24 ms on average over 31 passes: about 0.12 ms, and 3 ms once for the first frame of a decoder, whose memory
//! is new. The best of 22 passes took 0.83 s, the median 2.1 s, with other programs on both cores.
//!
//! # Files
//! This program itself reads byte streams and H.264 in MP4 files. Matroska (`.mkv`, `.webm`), transport streams (`.ts`, `.mts`, `.m2ts`) and MP4
//! files that hold H.265, or are fragmented, are read by libavformat where the system has one: versions 58 to 62, loaded at the first such file, as
//! libavcodec is (Debian 12: `libavformat59`, which comes with the package `ffmpeg`). Without it they are refused by name. The best video track of
//! each file is read. A truncated file is measured up to its end, and named. libavformat runs in this process, even with `--isolate`.
//!
//! # Sizes
//! A few bytes of a stream set the size of its pictures, and a decoder keeps up to 17 of them. Pictures with more samples than `--largest` allows,
//! before cropping, are refused by name, in files and from live sources; [`decode::Largest`] defaults to 4096×2304: 4K, and the most that openh264
//! decodes. A decoder of such pictures takes up to 240 MB. libavcodec and NVDEC also enforce the limit themselves, for streams that change their
//! size later on.
//!
//! # Live sources
//! `pdbp-video rtsp://camera/stream rtp://0.0.0.0:5004 clip.sdp` decodes every picture as it arrives ([`sources`]); a pass is a second, and a
//! stream without a picture in that second has fallen behind. When a source breaks, the reason is a fault of its stream, and the source is retried:
//! after 1 s, then 2, 4 and at most 8 s, until a picture comes. Memory is bounded: 100 pictures and 16 MiB per source that wait for their decoder;
//! for all sources of a process together a quarter of the available memory ([`sources::Room`], `--live-memory`), half of it in equal shares; and
//! the scores of the last two million pictures. Over UDP a late packet is waited for 200 ms, and for at most 32 packets; with a server there is no
//! such wait, since packets come in order or not at all. A sender's reports (RTCP) are no sign of life; only packets of the stream are.
//!
//! A process that receives many sources needs a descriptor for each, and three for one from a server in addition to the connection: it raises its
//! own limit as far as allowed, and reports how many are missing. A socket requests a receive buffer of 4 MiB; Linux grants 208 KiB (and as much
//! for its own records) unless `sysctl -w net.core.rmem_max=4194304` allows more, and a fault of lost packets mentions this. Anyone who can send to
//! the address of `rtp://` can take a source over, by two packets in order; the change of sender is reported. Two that send at once disturb each
//! other. Addresses are shown without user, password and parameters that look secret, and messages of servers without terminal control characters.
//!
//! Sources may be H.264 and H.265 in 8-bit 4:2:0, progressive; interleaved packets (`packetization-mode=2`) are refused by name. RTSP over TLS is
//! not supported. `rtspu://` requests packets by UDP, apart from the connection; a server that refuses this is named. `rtp://239.1.2.3:5004` joins
//! that group on the interface of the default route. Over MPI each source is received by the process that decodes it, and the first process reports
//! all; its live page shows the last pictures of the sources that it decodes itself.
//!
//! # Decoders that crash
//! `--isolate` (Linux) puts decoders into separate processes, one for each decoding thread: a decoder that crashes or hangs over a hostile stream
//! takes down only its process. The fault names the picture and the signal; the streams of that process go on at their next key pictures, the
//! guilty one in a separate process, and after three crashes not at all, unless it has shown 5,000 pictures since the last (`tests/isolate.rs`,
//! with a libavcodec that crashes on purpose). Without `--continuous`, where one decoder serves all streams, this holds for each key picture. The
//! live page decodes its pictures again, in a process that measures nothing; a picture that cannot be shown is not retried. An answer may take 20
//! s, during which the other streams of that thread wait; a nonsensical answer ends the process. **Without `--isolate` all of this, the page
//! included, happens in this process**: a decoder that crashes ends the run, and one that hangs its thread.
//!
//! Isolation costs two copies of each picture and two switches between processes. Processor time of both, `--example speed`, libavcodec, in a build
//! **without full optimisation while other programs used the machine** (load 25):
//!
//! | QCIF, CIF, D1 | in this process | isolated |
//! |---|---|---|
//! | P frame | 0.07, 0.22, 0.88 ms | 0.20, 0.69, 3.16 ms |
//! | key frame | 0.52, 1.70, 5.02 ms | 0.64, 2.11, 7.27 ms |
//!
//! # Full range
//! All decoders assume samples from 16 to 235, whatever the stream declares. In streams marked as full range (`video_full_range_flag`, 0 to 255)
//! very dark pictures therefore count as black, and the restored RGB has too much contrast.
//!
//! # Beside ffmpeg
//! Processor time of the whole program, start included, for 1,320 pictures of one stream (the bundled clip ten times), each with libavcodec 59.37
//! on one thread, in one run **while other programs used the machine** (load 12). `ffmpeg -i FILE -f null -` decodes, `-vf blurdetect,blockdetect`
//! measures two of the three scores; `pdbp-video --continuous --streams 1 --decoders 1 --passes 1320 FILE` decodes, transports (except with
//! `--nodes 0`), restores and measures all three, and checks for black and frozen pictures.
//!
//! | | ffmpeg decoding | with filters | pdbp-video, `--nodes 0` | four nodes | of filters | of decoding |
//! |---|---|---|---|---|---|---|
//! | QCIF | 0.19 s | 1.61 s | 0.32 s | 0.28 s | 5.0 and 5.8 times as fast | 0.6 and 0.7 |
//! | CIF | 0.41 s | 6.35 s | 0.79 s | 0.77 s | 8.0 and 8.2 times as fast | 0.5 |
//!
//! The aims, 10 times as fast as the filters and 0.8 of decoding alone, **are missed** here: each pass handles a single picture. With forty streams
//! (the last row of the next table) 8,000 pictures take 2.61 s of processor time in all; for 2,000 of each of its clips ffmpeg took, some minutes
//! later and clip by clip (`-stream_loop 20 -frames:v 2000`), 28.8 s with its filters and 1.75 s for decoding alone: 11.0 times as fast, and 0.67
//! of decoding.
//!
//! # With nothing else to do
//! On two cores of a virtual AMD EPYC, load below 1, libavcodec 59.37, analysis by the processor with AVX2, freeze detection on, four nodes, one
//! build:
//!
//! | `cargo run --release -p pdbp-video -- …` | pass | decoding / analysis per frame | outside both | aim |
//! |---|---|---|---|---|
//! | `--continuous --class qcif --streams 10080 --passes 12` | quickest 0.64 s, mean 2.0 s with the first frame of each decoder | 335 µs / 32 µs | 5.3 % | 0.8 s |
//! | `--streams 10080 --class qcif --nodes 4`: an IDR of each | 2.68 s | 471 µs / 28 µs | 3.3 % | 2.8 s |
//! | `--streams 10080` (QCIF, CIF and D1) | 9.7 s | 1.67 ms / 89 µs | 7.3 % | 4 % outside: **missed** |
//! | `--continuous --streams 40 --passes 200` of four MP4 clips (three CIF, one QCIF), twice | | 0.21 ms / 78 µs | 10.7, 11.5 % | 8 % outside: **missed** |
//!
//! The last share rose because the faster analysis is in its denominator.
//!
//! Processor time outside decoding and analysis, from before analysis used AVX2, libavcodec 59.37, four nodes on the same cores; the lowest and the
//! highest of two and of four runs of one program, at load 2 to 8:
//!
//! | | four nodes | without transport | aim |
//! |---|---|---|---|
//! | `--streams 10080`, one pass (the quicker: 10.7 s, start included) | 8.3 to 10.0 % | 1.1 % (before, load 7) | 4 % |
//! | `--continuous --streams 40 --passes 200` of four MP4 clips (three CIF, one QCIF) | 9.5 to 10.6 % | 4.0 to 4.3 % | 8 % |
//!
//! **Both aims are missed.** What was tried: stewards that sleep instead of being woken for each message of other parts, which cut context switches
//! by a third and the share by nothing distinguishable from noise; threads that learn to yield less before they sleep, in turn, a quarter fewer
//! context switches and 8.9 to 11.2 % (removed again); blocks that hold a whole CIF picture (`PDBP_BLOCK_BYTES=700000`), in turn, 8.5 to 13.0 %.
//! With real-time scheduling (`chrt -r 1`), beside other programs, the second row was 16.6 to 18.3 % in three runs, and 5.6 to 14.6 % with such
//! blocks; on two nodes or one 26 to 31 %, where waiting threads poll longer before they sleep.
//!
//! # On GPUs
//! With its feature `cuda` (on by default; the build machine needs nothing for it) the program analyses on CUDA devices: `--analyse gpu`, or
//! `auto`, the default, which uses the processor where no device can be used. A line of the summary says what analysed how many frames, and why it
//! was not a GPU. The analysing nodes of a process share its devices in turn; over MPI the process of rank n uses device n modulo the number of its
//! host's devices. Decoding needs none. **The scores are the same as the processor's, bit for bit**: [`measure::gpu`] explains how, and
//! `kernels/analysis.cu` what the kernels do and cost.
//!
//! When a device fails in the middle of a run, `--analyse gpu` ends the run with the device's error. With `auto` the processor analyses the frames
//! in flight and all that follow; no score is lost, and a line on standard error reports it.
//!
//! `cargo bench -p pdbp-video --bench analysis` analyses 383 MB of decoded pictures, as many as 10,080 of QCIF size. On two cores of a
//! virtual Intel Xeon at 2.6 GHz, best of three:
//!
//! | pictures | one thread | two threads |
//! |---|---|---|
//! | 10,080 QCIF | 346 ms | 167 ms |
//! | 2,520 CIF | 329 ms | 165 ms |
//! | 630 D1 | 331 ms | 166 ms |
//! | 4,410 of all three | 374 ms | 192 ms |
//!
//! On an H200 with sixteen processors of a virtual Intel Xeon, one run, of a build from before threads that wait for a device stayed awake for 200
//! µs, GB/s of pictures (the program also prints `frames/s`):
//!
//! | pictures | sixteen threads | kernel, restored | kernel, measured only | from pinned memory | by an analyser |
//! |---|---|---|---|---|---|
//! | 10,080 QCIF | 12.8 (30 ms) | 878 (0.44 ms) | 1,839 (0.21 ms) | 50.4 (7.6 ms) | 8.0 (48 ms) |
//! | 2,520 CIF | 16.1 | 931 | 1,838 | 50.2 | 8.2 |
//! | 630 D1 | 16.6 | 931 | 1,855 | 50.1 | 8.0 |
//! | 4,410 of all three | 14.9 | 901 | 1,813 | 50.3 | 6.6 |
//!
//! The kernels take 0.7 of what a copy within the device's memory moves in that time (restoration writes twice the bytes that are read); from
//! pinned memory the link to the device is the limit, 0.93 of which is used; an analyser, one thread, is as fast as it copies pictures into such
//! memory: **sixteen processors do more by themselves**. Passes of [10,080 streams](#with-nothing-else-to-do) there, four nodes:
//!
//! | `pdbp-video --streams 10080 …`, libavcodec 62 | `--analyse cpu` | `--analyse gpu` |
//! |---|---|---|
//! | `--class qcif --passes 5`: an IDR of each | **0.56 s** | 0.61 s (openh264: 1.04 s) |
//! | `--passes 3` (QCIF, CIF and D1) | 2.03 s | 1.73 s |
//! | `--class qcif --continuous --passes 20` | | 0.28 s, quickest 0.165 s |
//! | `--class qcif --replay`: already decoded, the previous build | 0.14 s | 0.165 s |
//!
//! The patent (S0) has 1.5 s on 18 machines.

pub mod account;
pub mod annexb;
pub mod cli;
pub mod clips;
pub mod decode;
pub mod direct;
pub mod elastic;
pub mod frame;
pub mod live;
pub mod measure;
pub mod outcome;
pub mod pipeline;
mod plain;
pub mod plan;
pub mod progress;
pub mod report;
mod show;
pub mod sources;
pub mod streams;
