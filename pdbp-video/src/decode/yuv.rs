//! A borrowed YUV 4:2:0 picture.

use crate::annexb::PictureSize;

/// One plane: rows of `width` samples, `stride` bytes apart.
#[derive(Debug, Clone, Copy)]
struct Plane<'a> {
    samples: &'a [u8],
    stride: usize,
    width: usize,
    height: usize,
}

impl<'a> Plane<'a> {
    /// `None` if `samples` is too short for the geometry.
    fn new(samples: &'a [u8], stride: usize, width: usize, height: usize) -> Option<Self> {
        let last_row = stride.checked_mul(height.checked_sub(1)?)?;
        let fits = width > 0 && stride >= width && last_row.checked_add(width)? <= samples.len();
        fits.then_some(Self { samples, stride, width, height })
    }

    fn row(self, row: usize) -> &'a [u8] {
        let start = row * self.stride;
        &self.samples[start..start + self.width]
    }

    fn rows(self) -> impl DoubleEndedIterator<Item = &'a [u8]> + ExactSizeIterator + Clone {
        (0..self.height).map(move |row| self.row(row))
    }

    fn copy_to(self, out: &mut [u8]) {
        if self.stride == self.width && out.len() <= self.samples.len() {
            out.copy_from_slice(&self.samples[..out.len()]);
            return;
        }
        for (to, from) in out.chunks_exact_mut(self.width).zip(self.rows()) {
            to.copy_from_slice(from);
        }
    }
}

/// A YUV 4:2:0 picture in someone else's memory: the decoder's, or a message block. Chroma planes have half the width and
/// height of the luma plane, rounded up.
#[derive(Debug, Clone, Copy)]
pub struct Yuv<'a> {
    size: PictureSize,
    y: Plane<'a>,
    u: Plane<'a>,
    v: Plane<'a>,
    #[cfg(feature = "cuda")]
    on_device: Option<OnDevice>,
}

/// Where a device also has the picture, while it is borrowed: its planes back to back, without padding.
#[cfg(feature = "cuda")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OnDevice {
    /// The device's number.
    pub(crate) ordinal: usize,
    /// The address of the first byte.
    pub(crate) address: u64,
}

impl<'a> Yuv<'a> {
    /// A picture of planes with the given strides, in bytes, for luma and chroma. `None` if a size is zero, a stride is less
    /// than its width, or a plane is too short.
    pub fn new(size: PictureSize, planes: [&'a [u8]; 3], strides: [usize; 2]) -> Option<Self> {
        let (width, height) = (usize::from(size.width), usize::from(size.height));
        let chroma = |samples| Plane::new(samples, strides[1], width.div_ceil(2), height.div_ceil(2));
        let [y, u, v] = planes;
        Some(Self {
            size,
            y: Plane::new(y, strides[0], width, height)?,
            u: chroma(u)?,
            v: chroma(v)?,
            #[cfg(feature = "cuda")]
            on_device: None,
        })
    }

    /// Planes without padding whose lengths the caller has checked.
    pub(crate) fn tight(size: PictureSize, y: &'a [u8], u: &'a [u8], v: &'a [u8]) -> Self {
        let (width, height) = (usize::from(size.width), usize::from(size.height));
        let (half_width, half_height) = (width.div_ceil(2), height.div_ceil(2));
        let plane = |samples, width, height| Plane { samples, stride: width, width, height };
        Self {
            size,
            y: plane(y, width, height),
            u: plane(u, half_width, half_height),
            v: plane(v, half_width, half_height),
            #[cfg(feature = "cuda")]
            on_device: None,
        }
    }

    /// The same picture, with a device's copy: as many bytes as the planes have, valid while it is borrowed.
    #[cfg(feature = "cuda")]
    pub(crate) fn with_copy(self, on_device: OnDevice) -> Self {
        Self { on_device: Some(on_device), ..self }
    }

    /// A device's copy.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_device(&self) -> Option<OnDevice> {
        self.on_device
    }

    /// Width and height of the luma plane.
    pub fn size(&self) -> PictureSize {
        self.size
    }

    /// Luma row `row`, counted from the top.
    ///
    /// # Panics
    ///
    /// If `row` is not below the height.
    pub fn luma_row(&self, row: usize) -> &'a [u8] {
        self.y.row(row)
    }

    /// The luma rows from the top.
    pub fn luma_rows(&self) -> impl DoubleEndedIterator<Item = &'a [u8]> + ExactSizeIterator + Clone {
        self.y.rows()
    }

    /// Row `row` of the two chroma planes, U and V; it belongs to luma rows 2·`row` and 2·`row` + 1.
    ///
    /// # Panics
    ///
    /// If `row` is not below half the height, rounded up.
    pub fn chroma_row(&self, row: usize) -> (&'a [u8], &'a [u8]) {
        (self.u.row(row), self.v.row(row))
    }

    /// Copies the planes, without padding, into buffers of exactly their sizes.
    pub fn copy_planes(&self, y: &mut [u8], u: &mut [u8], v: &mut [u8]) {
        self.y.copy_to(y);
        self.u.copy_to(u);
        self.v.copy_to(v);
    }
}
